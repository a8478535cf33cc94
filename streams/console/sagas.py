"""The page of sagas: counts by status, those that need attention, then the list that was requested."""

from __future__ import annotations

from asyncio import gather
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from streams.console.page import Form, Page, from_form
from streams.console.stopped_handlers import stopped_handlers
from streams.control.api.sagas import saga
from streams.control.api.web_request import WebRequest
from streams.control.base.asked import address_of
from streams.control.overview.hours import HourLine
from streams.control.sagas.saga_answers import AskSaga, SagaAnswer, SagasAnswer, SagaShown
from streams.control.sagas.sagas import ask_saga, list_sagas

#: So many sagas that need attention come before the others.
MOST_FIRST = 20
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
        list_sagas(request.view, request.query, request.others(SagasAnswer)),
        request.overviews.answer(),
        request.overviews.hours(),
    )
    counts, stalled, counted = overview.sagas, overview.stalled, overview.counted
    first: list[SagaAnswer] = []
    if not any(request.query.get(name) for name in _ASKS):
        for wanted, there in (({"status": "failed"}, counts.get("failed")), ({"stalled": "1"}, stalled)):
            if there:
                query = {**wanted, "limit": str(MOST_FIRST)}
                some = await list_sagas(request.view, query, request.others(SagasAnswer))
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


async def saga_page(request: WebRequest) -> SagaShown:
    """The page; where the saga has not ended, also the stopped handlers on its way, of whichever lane."""
    shown, overview = await gather(saga(request), request.overviews.answer())
    handlers = [each for service in overview.services for each in service.handlers]
    more = stopped_handlers(request.view.application, shown, handlers)
    return replace(shown, causes=[*shown.causes, *more])


async def _repair(request: WebRequest, fields: dict[str, str]) -> str:
    """Ask a saga for what a form says, and lead back to its page."""
    ask = from_form(fields, AskSaga, "operation", "who", "why", "step")
    ident = request.names["saga"]
    done = await ask_saga(request.view, ident, ask, request.others(SagaShown))
    there = address_of("/sagas", "saga", ident)
    query = urlencode({"asked": f"{done.operation} {done.step}".strip(), "entries": done.entries})
    return f"{there}{'&' if '?' in there else '?'}{query}"


ROUTES = (
    Page("/sagas", sagas_page, "sagas.html"),
    Page("/sagas/{saga}", saga_page, "saga.html"),
    Form("/sagas/{saga}", _repair),
)
