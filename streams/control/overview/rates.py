"""How fast things go: counters that lanes and handlers keep anyway, looked at every few seconds."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from streams.control.base.view import WorkerView
from streams.control.overview.hours import TOGETHER, Hours
from streams.control.overview.pace import Pace

#: Seconds between two looks.
INTERVAL = 5.0
#: What rates cover, in seconds: what happens now, and what has happened lately.
SHORT, LONG = 10.0, 60.0
#: Looks that are kept: those of a minute, and the one before.
KEPT = int(LONG / INTERVAL) + 1


@dataclass(frozen=True, slots=True)
class RateSample:
    """Counters as they were `at` a time, epoch seconds. Each of a lane is also by the lane's number: lanes
    come and go, and begin again with nothing.

    Attributes:
        taken: messages, by lane and topic.
        commits: transactions, by lane.
        attempts: by handler, one number for each bound of their durations.
        failures: attempts that failed, by handler.
        lags: messages that are not taken yet, by topic. No counter: it falls, too.
    """

    at: float
    taken: Mapping[tuple[int, str], int] = field(default_factory=dict)
    commits: Mapping[int, int] = field(default_factory=dict)
    attempts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    lags: Mapping[str, int] = field(default_factory=dict)


def look(view: WorkerView) -> RateSample:
    """At all counters of a worker."""
    taken: dict[tuple[int, str], int] = {}
    lags: Counter[str] = Counter()
    for number, lane in view.lanes.items():
        if lane.measures.intake is not None:
            taken |= {(number, topic): n for topic, n in lane.measures.intake.taken_by_topic.items()}
            lags.update(lane.measures.intake.not_taken)
    attempts, failures = {}, {}
    for handler, measured in view.handlers.items():
        both = zip(measured.succeeded.counts, measured.failed.counts, strict=True)
        attempts[handler] = [well + badly for well, badly in both]
        failures[handler] = sum(measured.failed.counts)
    commits = {number: lane.commits for number, lane in view.lanes.items()}
    return RateSample(view.now(), taken, commits, attempts, failures, lags)


def increase(now: int, before: int) -> int:
    """Of a counter; one that has begun again meanwhile has come to what it is from nothing."""
    return now - before if now >= before else now


def base(looks: Iterable[RateSample], now: float, seconds: float) -> RateSample | None:
    """The newest look that is so old; else the oldest of all. None: there is none before now."""
    found = None
    for each in looks:  # oldest first
        if each.at >= now or (found is not None and now - each.at < seconds):
            break
        found = each
    return found


class Rates:
    """The difference between two samples."""

    def __init__(self, now: RateSample, before: RateSample | None) -> None:
        self._now = now
        self._before = before or RateSample(now.at)
        #: Seconds in between; 0: there was no look before, and no rate is known.
        self.span = 0.0 if before is None else now.at - before.at
        self._taken: Counter[str] = Counter()
        for place, count in now.taken.items():
            self._taken[place[1]] += increase(count, self._before.taken.get(place, 0))

    def topic(self, topic: str) -> float:
        """Messages taken per second."""
        return self._rate(self._taken[topic])

    def commits(self, lane: int) -> float:
        """Transactions per second."""
        return self._rate(increase(self._now.commits.get(lane, 0), self._before.commits.get(lane, 0)))

    def handler(self, handler: str) -> float:
        """Attempts per second."""
        return self._rate(sum(self.durations(handler)))

    def durations(self, handler: str) -> list[int]:
        """Attempts by how long they took."""
        now = self._now.attempts.get(handler, ())
        if not self.span:
            return [0] * len(now)
        before = self._before.attempts.get(handler, [0] * len(now))
        return [increase(*pair) for pair in zip(now, before, strict=True)]

    def failures(self, handler: str) -> int:
        """Attempts that failed."""
        now, before = self._now.failures.get(handler, 0), self._before.failures.get(handler, 0)
        return increase(now, before) if self.span else 0

    def lag(self, topic: str) -> int:
        """Messages of a topic that are not taken yet."""
        return self._now.lags.get(topic, 0)

    def lag_before(self, topic: str) -> int:
        """Messages of a topic that were not taken at the look before; those of now while there was none for
        so long that one could tell a growing lag from one that was there at the start.
        """
        looks = self._before if self.span >= LONG / 2 else self._now
        return looks.lags.get(topic, 0)

    def _rate(self, count: int) -> float:
        return round(count / self.span, 3) if self.span else 0.0


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run a coroutine beside the block, and cancel it when the block ends."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class RatePoller:
    """The latest samples of a worker's counters. They are kept also while no page is open, so that the
    first page has rates. A sample costs some microseconds for each handler and lane.
    """

    def __init__(self, view: WorkerView, hours: Hours | None = None) -> None:
        self._view = view
        self._hours = hours or Hours()
        self._looks: deque[RateSample] = deque(maxlen=KEPT)
        self.pace = Pace()

    def running(self) -> AbstractAsyncContextManager[None]:
        """Keep a sample every `INTERVAL` seconds for as long as this is open."""
        return in_background(self._run(), "rate samples")

    async def _run(self) -> None:
        async with in_background(self.pace.run(), "loop delay"):
            while True:
                self.keep()
                await asyncio.sleep(INTERVAL)

    def keep(self) -> None:
        """Look, and remember it; the last hour has the attempts since the look before, and the lag."""
        now = look(self._view)
        before = self._looks[-1].attempts if self._looks else {}
        made = {name: increase(sum(all_), sum(before.get(name, ()))) for name, all_ in now.attempts.items()}
        self._hours.put("attempts", now.at, TOGETHER, made, add=True)
        self._hours.put("lag", now.at, TOGETHER, now.lags)
        self._looks.append(now)

    def rates(self) -> tuple[Rates, Rates]:
        """Up to now: of the last ten seconds, and of the last minute."""
        now = look(self._view)
        short, long = (base(self._looks, now.at, seconds) for seconds in (SHORT, LONG))
        return Rates(now, short), Rates(now, long)


def percentile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """Which value so large a share of all does not exceed: interpolated between the bounds that it lies
    between. None of nothing; the largest bound where it lies beyond.
    """
    total = sum(counts)
    if not total:
        return None
    wanted, passed = share * total, 0
    for index, count in enumerate(counts[: len(bounds)]):
        if count and passed + count >= wanted:
            below = bounds[index - 1] if index else 0.0
            return below + (bounds[index] - below) * (wanted - passed) / count
        passed += count
    return bounds[-1]
