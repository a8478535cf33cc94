"""Addresses of messages that wait."""

from __future__ import annotations

from collections import Counter

import msgspec

from streams.web.sagas.saga_counts import CountsAnswer, StatusLine
from streams.web.site.saga_routes import over_time
from streams.web.site.web_request import Read, WebRequest, asks
from streams.web.waiting.waiting import list_waiting
from streams.web.waiting.waiting_answers import REASONS, WAITING_PATH, WaitingPage

#: Where workers ask each other for their counts of the last hour.
OVER_TIME_PATH = "/api/waiting-over-time"


class LinesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages waited in the last hour, minute by minute, by handler."""

    handlers: dict[str, StatusLine]


class WaitingShown(msgspec.Struct, frozen=True, kw_only=True):
    """The page: what was found, how many wait for which handler as counted last, and the names of reasons."""

    found: WaitingPage
    total: int
    by_handler: dict[str, int]
    reasons: dict[str, str]
    lines: dict[str, StatusLine] = {}

    @property
    def heading(self) -> str:
        """How many wait, and where most of them wait for one handler, for which."""
        if not self.total:
            return "No message waits" if not self.found.waiting else "Messages wait"
        heading = "1 message waits" if self.total == 1 else f"{self.total:,} messages wait"
        handler, count = next(iter(self.by_handler.items()))
        return (
            f"{heading}: {count:,} of them for {handler}"
            if count < self.total
            else f"{heading} for {handler}"
        )


async def waiting_lines(request: WebRequest) -> dict[str, StatusLine]:
    """How many messages waited in the last hour, by handler."""
    own, ask = request.overviews.waiting_counts(), request.asker(CountsAnswer)["ask"]
    found, _ = await over_time(request.view, own, ask, OVER_TIME_PATH)
    return {line.status: line for line in found if len(line.counts) > 1}


async def _over_time(request: WebRequest) -> CountsAnswer | LinesAnswer:
    """The same; another worker gets the counts of this one alone."""
    if request.asked_by is not None:
        return request.overviews.waiting_counts()
    return LinesAnswer(handlers=await waiting_lines(request))


async def waiting_page(request: WebRequest) -> WaitingShown:
    """The page. Raises Problem."""
    overview = await request.overviews.answer()
    counts = Counter(
        {each.handler: each.numbers.waits for service in overview.services for each in service.handlers}
    )
    return WaitingShown(
        found=await list_waiting(request.view, request.query, **request.asker(WaitingPage)),
        total=overview.waiting,
        by_handler={name: count for name, count in counts.most_common() if count},
        reasons=REASONS,
        lines=await waiting_lines(request),
    )


ROUTES = (
    Read(WAITING_PATH.removeprefix("/api"), asks(list_waiting, WaitingPage)),
    Read(OVER_TIME_PATH.removeprefix("/api"), _over_time),
    Read("/waiting", waiting_page, "waiting.html", json=None),
)
