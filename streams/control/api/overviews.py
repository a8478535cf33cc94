"""The overview of a worker's site: what it is made from."""

from __future__ import annotations

from asyncio import gather
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import ClientSession
from msgspec.structs import replace

from streams.control.base.others import Others
from streams.control.base.owner import ask_json
from streams.control.base.view import WorkerView
from streams.control.overview.flow import overview_of
from streams.control.overview.flow_answers import OverviewAnswer, WorkerPart
from streams.control.overview.flow_part import worker_part
from streams.control.overview.hours import CountsAnswer, HoursAnswer, over_time
from streams.control.overview.last_known import LastKnown
from streams.control.overview.rates import RatePoller, in_background
from streams.control.overview.samples import Sampler

#: Seconds for which lines of an hour stand as they are.
HOURS_FRESH = 10.0


class Overviews:
    """Answers for one worker; see `overviews`."""

    def __init__(self, view: WorkerView, sampler: Sampler, session: ClientSession, looks: RatePoller) -> None:
        self._view = view
        self._sampler = sampler
        self._looks = looks
        self.last_known = LastKnown(view)
        self._hours: tuple[float, HoursAnswer] | None = None
        self._parts = Others(partial(ask_json, session, kind=WorkerPart, asked_by=view.url))
        self._counts = Others(partial(ask_json, session, kind=CountsAnswer, asked_by=view.url))

    def part(self) -> WorkerPart:
        """The part of this worker."""
        return worker_part(self._view, self._looks, self._sampler.lanes)

    def counts(self) -> CountsAnswer:
        """The counts of this worker in the last hour."""
        return CountsAnswer(kinds=self._sampler.hours.kinds)

    async def hours(self) -> HoursAnswer:
        """The last hour of all workers; anew every few seconds."""
        now = self._view.now()
        if self._hours is None or not 0 <= now - self._hours[0] < HOURS_FRESH:
            self._hours = now, await over_time(self._view, self.counts(), self._counts)
        return self._hours[1]

    async def answer(self) -> OverviewAnswer:
        """The overview of all workers."""
        view, samples = self._view, self._sampler.lanes
        found, hours = await gather(
            overview_of(view, self._looks, samples, self._parts, self.last_known), self.hours()
        )
        return replace(found, lines=hours.totals())


@asynccontextmanager
async def overviews(view: WorkerView, sampler: Sampler, session: ClientSession) -> AsyncIterator[Overviews]:
    """Samples the worker's counters."""
    looks = RatePoller(view, sampler.hours)
    async with looks.running():
        made = Overviews(view, sampler, session, looks)
        async with in_background(made.last_known.run(), "last known"):
            yield made
