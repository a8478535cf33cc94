"""The page of messages that wait."""

from __future__ import annotations

from asyncio import gather
from collections import Counter

import msgspec

from streams.console.page import Page
from streams.control.api.web_request import WebRequest
from streams.control.overview.flow_answers import lanes_text
from streams.control.overview.hours import HourLine
from streams.control.waiting.waiting import list_waiting
from streams.control.waiting.waiting_answers import REASONS, WaitingPage


class WaitingShown(msgspec.Struct, frozen=True, kw_only=True):
    """The page: what was found, how many wait for which handler as counted last, the names of reasons, and
    which of these handlers are paused or fail.
    """

    found: WaitingPage
    total: int
    by_handler: dict[str, int]
    reasons: dict[str, str]
    lines: dict[str, HourLine] = {}
    stopped: dict[str, str] = {}

    @property
    def paused(self) -> list[str]:
        """The stopped handlers that somebody has to resume; the others retry by themselves."""
        return [name for name, why in self.stopped.items() if why.startswith("paused")]

    @property
    def heading(self) -> str:
        """How many wait, and where most of them wait for one handler, for which."""
        if not self.total:
            if self.found.waiting:
                return "Messages are waiting"
            if not self.found.left_out:
                return "No message is waiting"
            return f"Not known whether messages are waiting: {lanes_text(self.found.left_out)} did not answer"
        heading = "1 message waits" if self.total == 1 else f"{self.total:,} messages wait"
        handler, count = next(iter(self.by_handler.items()))
        ends = "is resumed" if handler in self.paused else "succeeds again"
        what = f"until {handler} {ends}" if handler in self.stopped else f"for {handler}"
        return f"{heading}: {count:,} of them {what}" if count < self.total else f"{heading} {what}"


async def waiting_page(request: WebRequest) -> WaitingShown:
    """The page. Raises Problem."""
    found, overview, hours = await gather(
        list_waiting(request.view, request.query, request.others(WaitingPage)),
        request.overviews.answer(),
        request.overviews.hours(),
    )
    handlers = {each.handler: each.numbers for service in overview.services for each in service.handlers}
    counts = Counter({name: each.waits for name, each in handlers.items() if each.waits})
    return WaitingShown(
        found=found,
        total=overview.waiting,
        by_handler=dict(counts.most_common()),
        stopped={name: handlers[name].stopped for name in counts if handlers[name].stopped},
        reasons=REASONS,
        lines={each.name: each for each in hours.lines["waiting"] if len(each.counts) > 1},
    )


ROUTES = (Page("/waiting", waiting_page, "waiting.html"),)
