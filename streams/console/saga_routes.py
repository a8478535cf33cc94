"""The page of sagas: counts by status, those that need attention, then the list that was requested."""

from __future__ import annotations

from asyncio import gather
from itertools import islice
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from streams.console.stopped_handlers import stopped_handlers
from streams.console.web_request import ApiOperation, Form, Read, WebRequest, asks, from_form
from streams.control.base.asked import address_of
from streams.control.base.paging import after
from streams.control.base.standby_rows import STANDBY, or_standby
from streams.control.base.view import readable_store
from streams.control.overview.hours import HourLine
from streams.control.sagas.saga_answers import AskSaga, SagaAnswer, SagasAnswer, SagaShown
from streams.control.sagas.sagas import SAGAS_PATH, ask_saga, lane_of_saga, list_sagas, path_of, show_saga
from streams.control.waiting.queue_answers import rows_of_key
from streams.engine.staging.keys import store_key
from streams.engine.waiting.dead_letters.row import LetterState, decode_summary
from streams.model.layout import DEAD_LETTERS
from streams.model.row_keys import row_key

#: So many sagas that need attention come before the others.
MOST_FIRST = 20
#: Causes of each kind that a saga's page names.
MOST_CAUSES = 5
_ASKS = ("status", "stalled", "older", "cursor")


class SagasPage(msgspec.Struct, frozen=True, kw_only=True):
    """Sagas of all workers.

    Attributes:
        counts: how many there are of each status, `counted` seconds ago or later; None: not counted yet.
        first: those that wait for an operator or take too long; only where the query has no filter.
        found: by the query.
        lines: how many there were in the last hour, as far as workers remember.
        untold: workers that did not send their counts.
    """

    counts: dict[str, int]
    stalled: int
    counted: float | None
    first: list[SagaAnswer]
    found: SagasAnswer
    lines: list[HourLine] = []
    untold: list[str] = []


async def sagas_page(request: WebRequest) -> SagasPage:
    """The page. Raises Problem."""
    found, overview, hours = await gather(
        list_sagas(request.view, request.query, **request.asker(SagasAnswer)),
        request.overviews.answer(),
        request.overviews.hours(),
    )
    counts, stalled, counted = overview.sagas, overview.stalled, overview.counted
    first: list[SagaAnswer] = []
    if not any(request.query.get(name) for name in _ASKS):
        for wanted, there in (({"status": "failed"}, counts.get("failed")), ({"stalled": "1"}, stalled)):
            if there:
                query = {**wanted, "limit": str(MOST_FIRST)}
                some = await list_sagas(request.view, query, **request.asker(SagasAnswer))
                known = {each.id for each in first}
                first += [each for each in some.sagas if each.id not in known]
    return SagasPage(
        counts=counts,
        stalled=stalled,
        counted=counted,
        first=first,
        found=found,
        lines=hours.lines["sagas"],
        untold=hours.untold,
    )


async def _saga(request: WebRequest) -> SagaShown:
    """A saga; while it has not ended, its owner says what of its key waits, and for what. Raises Problem."""
    view, ident = request.view, request.names["saga"]
    shown = await _shown(request, ident)
    if shown.stale or shown.owner != view.url or shown.saga.status in ("completed", "compensated"):
        return shown
    key, store = ident.partition(":")[2].encode("utf-8", "surrogateescape"), readable_store(view, shown.lane)
    rows = islice(rows_of_key(view, store, shown.lane, key, behind=0), MOST_CAUSES)
    causes = [f"{row.type} waits for {row.handler}: {row.why}; until {row.until}" for row in rows]
    first = store_key(shown.partition, row_key(key))
    for _, data in islice(store.scan(DEAD_LETTERS, start=first, stop=after(first)), MOST_CAUSES):
        letter = decode_summary(data)
        if letter.state is not LetterState.DISCARDED:
            what = f"{letter.message_type} is a dead letter of {letter.handler or 'no handler'}"
            causes.append(f"{what}: {letter.error_type}: {letter.error_message}")
    return replace(shown, causes=causes)


async def _shown(request: WebRequest, ident: str) -> SagaShown:
    """From its owner; on a page from a standby, where the owner does not answer. Raises Problem."""
    view, asker, copied = request.view, request.asker(SagaShown), {STANDBY: "1"}
    if not request.may_be_stale:
        return await show_saga(view, ident, request.rows_query, **asker)

    async def elsewhere(url: str) -> SagaShown:
        found: SagaShown = await asker["ask"](url, path_of(ident), copied)
        return found

    found, why = await or_standby(
        view,
        lane_of_saga(view, ident),
        lambda: show_saga(view, ident, request.rows_query, **asker),
        lambda: show_saga(view, ident, copied, **asker),
        elsewhere,
    )
    return replace(found, stale=replace(found.stale, why=why)) if found.stale and why else found


async def saga_page(request: WebRequest) -> SagaShown:
    """The page; where the saga has not ended, also the stopped handlers on its way, of whichever lane."""
    shown, overview = await gather(_saga(request), request.overviews.answer())
    handlers = [each for service in overview.services for each in service.handlers]
    more = stopped_handlers(request.view.application, shown, handlers)
    return replace(shown, causes=[*shown.causes, *more])


_decode_ask = msgspec.json.Decoder(AskSaga).decode


async def _operate(request: WebRequest) -> msgspec.Struct:
    wanted = request.json(_decode_ask)
    return await ask_saga(request.view, request.names["saga"], wanted, ask=request.asker(SagaShown)["ask"])


async def _repair(request: WebRequest, fields: dict[str, str]) -> str:
    """Ask a saga for what a form says, and lead back to its page."""
    ask = from_form(fields, AskSaga, "operation", "who", "why", "step")
    ident = request.names["saga"]
    done = await ask_saga(request.view, ident, ask, ask=request.asker(SagaShown)["ask"])
    there = address_of("/sagas", "saga", ident)
    query = urlencode({"asked": f"{done.operation} {done.step}".strip(), "entries": done.entries})
    return f"{there}{'&' if '?' in there else '?'}{query}"


ROUTES = (
    Read("/sagas", asks(list_sagas, SagasAnswer)),
    Read("/sagas", sagas_page, "sagas.html", json=None),
    Read("/sagas/{saga}", _saga),
    Read("/sagas/{saga}", saga_page, "saga.html", json=None),
    Form("/sagas/{saga}", _repair),
    ApiOperation(f"{SAGAS_PATH.removeprefix('/api')}/{{saga}}/operations", _operate),
)
