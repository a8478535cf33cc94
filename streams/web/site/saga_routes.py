"""The page of sagas: counts by status, those that need attention, then the list that was requested."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import replace

from streams.dead_letters.row import LetterState, decode_summary
from streams.model.layout import DEAD_LETTERS
from streams.model.row_keys import row_key
from streams.staging.keys import store_key
from streams.web.base.lane_rows import Query
from streams.web.base.paging import after
from streams.web.base.view import Problem, WorkerView, readable_store
from streams.web.overview.flow import PATIENCE
from streams.web.sagas.saga_answers import AskSaga, SagaAnswer, SagasAnswer, SagaShown
from streams.web.sagas.saga_counts import COUNTS_PATH, CountsAnswer, StatusLine, lines
from streams.web.sagas.sagas import SAGAS_PATH, ask_saga, list_sagas, show_saga
from streams.web.site.web_request import ApiOperation, Form, Read, WebRequest, asks, from_form
from streams.web.waiting.queue_answers import rows_of_key

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
    lines: list[StatusLine] = []
    untold: list[str] = []


class OverTime(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of that page alone."""

    lines: list[StatusLine]
    untold: list[str]


async def sagas_over_time(request: WebRequest) -> OverTime | CountsAnswer:
    """How many sagas there were; another worker gets the counts of this one alone."""
    own = request.overviews.saga_counts()
    if request.asked_by is not None:
        return own
    counts, untold = await over_time(request.view, own, request.asker(CountsAnswer)["ask"])
    return OverTime(lines=counts, untold=untold)


async def sagas_page(request: WebRequest) -> SagasPage:
    """The page. Raises Problem."""
    overview = await request.overviews.answer()
    counts, stalled, counted = overview.sagas, overview.stalled, overview.counted
    first: list[SagaAnswer] = []
    if not any(request.query.get(name) for name in _ASKS):
        for wanted, there in (({"status": "failed"}, counts.get("failed")), ({"stalled": "1"}, stalled)):
            if there:
                query = {**wanted, "limit": str(MOST_FIRST)}
                some = await list_sagas(request.view, query, **request.asker(SagasAnswer))
                known = {each.id for each in first}
                first += [each for each in some.sagas if each.id not in known]
    found = await list_sagas(request.view, request.query, **request.asker(SagasAnswer))
    ask = request.asker(CountsAnswer)["ask"]
    minutes, untold = await over_time(request.view, request.overviews.saga_counts(), ask)
    return SagasPage(
        counts=counts,
        stalled=stalled,
        counted=counted,
        first=first,
        found=found,
        lines=minutes,
        untold=untold,
    )


async def over_time(
    view: WorkerView,
    own: CountsAnswer,
    ask: Callable[[str, str, Query], Awaitable[Any]],
    path: str = COUNTS_PATH,
) -> tuple[list[StatusLine], list[str]]:
    """Counts of the last hour, of all workers that answer at `path`, and the others: silent ones, and those
    of a version that does not count.
    """
    known = {*view.assignment.owners.values(), *view.assignment.members}
    others = sorted(url for url in known if url and url != view.url)
    answers = await asyncio.gather(*(_asked(url, ask, path) for url in others))
    counts = [each for each in answers if each is not None]
    untold = [url for url, each in zip(others, answers, strict=True) if each is None]
    return lines([own, *counts], int(view.now() // 60)), untold


async def _asked(
    url: str, ask: Callable[[str, str, Query], Awaitable[Any]], path: str
) -> CountsAnswer | None:
    with suppress(TimeoutError, Problem):  # the overview says why
        async with asyncio.timeout(PATIENCE):
            found: CountsAnswer = await ask(url, path, {})
            return found
    return None


async def _saga(request: WebRequest) -> SagaShown:
    """A saga; while it has not ended, its owner says what of its key waits, and for what. Raises Problem."""
    view, ident = request.view, request.names["saga"]
    shown = await show_saga(view, ident, **request.asker(SagaShown))
    if shown.owner != view.url or shown.saga.status in ("completed", "compensated"):
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


_decode_ask = msgspec.json.Decoder(AskSaga).decode


async def _operate(request: WebRequest) -> msgspec.Struct:
    wanted = request.json(_decode_ask)
    return await ask_saga(request.view, request.names["saga"], wanted, ask=request.asker(SagaShown)["ask"])


async def _repair(request: WebRequest, fields: dict[str, str]) -> str:
    """Ask a saga for what a form says, and lead back to its page."""
    ask = from_form(fields, AskSaga, "operation", "who", "why", "step")
    ident = request.names["saga"]
    done = await ask_saga(request.view, ident, ask, ask=request.asker(SagaShown)["ask"])
    query = urlencode({"asked": f"{done.operation} {done.step}".strip()})
    return f"/sagas/{quote(ident, safe='')}?{query}"


ROUTES = (
    Read("/sagas", asks(list_sagas, SagasAnswer)),
    Read("/sagas", sagas_page, "sagas.html", json=None),
    Read(COUNTS_PATH.removeprefix("/api"), sagas_over_time),
    Read("/sagas/{saga}", _saga, "saga.html"),
    Form("/sagas/{saga}", _repair),
    ApiOperation(f"{SAGAS_PATH.removeprefix('/api')}/{{saga}}/operations", _operate),
)
