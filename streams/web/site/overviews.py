"""The overview of a worker's site: what it is made from, and its live parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import ClientSession

from streams.web.base.live import Live
from streams.web.base.owner import ask_json
from streams.web.base.view import WorkerView
from streams.web.overview.flow import overview_of
from streams.web.overview.flow_answers import OverviewAnswer, WorkerPart
from streams.web.overview.flow_part import worker_part
from streams.web.overview.last_known import LastKnown
from streams.web.overview.rates import RatePoller, in_background
from streams.web.overview.samples import Sampler
from streams.web.sagas.saga_counts import CountsAnswer
from streams.web.site.pages import render

#: What changes on the page, each by the name of its event, with its template.
LIVE_PARTS = {
    part: f"overview_{part}.html"
    for part in ("state", "warnings", "tiles", "flow", "workers", "handlers", "topics")
}


class Overviews:
    """Answers for one worker; see `overviews`."""

    def __init__(self, view: WorkerView, sampler: Sampler, session: ClientSession, looks: RatePoller) -> None:
        self.live = Live(self._parts)
        self._view = view
        self._sampler = sampler
        self._looks = looks
        self.last_known = LastKnown(view)
        self._ask = partial(ask_json, session, kind=WorkerPart, asked_by=view.url)

    def part(self) -> WorkerPart:
        """The part of this worker."""
        return worker_part(self._view, self._looks, self._sampler.lanes)

    def saga_counts(self) -> CountsAnswer:
        """The counts of sagas of this worker in the last hour."""
        return CountsAnswer(minutes=self._sampler.sagas.minutes)

    def waiting_counts(self) -> CountsAnswer:
        """The messages that waited in this worker's lanes in the last hour, by handler."""
        return CountsAnswer(minutes=self._sampler.waiting.minutes)

    async def answer(self) -> OverviewAnswer:
        """The overview of all workers."""
        return await overview_of(self._view, self._looks, self._sampler.lanes, self._ask, self.last_known)

    async def _parts(self) -> dict[str, str]:
        answer = await self.answer()
        now = self._view.now()
        return {name: render(template, answer=answer, now=now) for name, template in LIVE_PARTS.items()}


@asynccontextmanager
async def overviews(view: WorkerView, sampler: Sampler, session: ClientSession) -> AsyncIterator[Overviews]:
    """Samples the worker's counters; at the end it releases the live pages."""
    looks = RatePoller(view)
    async with looks.running():
        made = Overviews(view, sampler, session, looks)
        async with in_background(made.last_known.run(), "last known"):
            try:
                yield made
            finally:
                made.live.end()
