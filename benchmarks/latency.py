"""Latency at a steady rate, without coordinated omission.

Each message has a time at which it is due, whatever happened to those before; its latency begins then. A
sender that is held up sends late, and that counts, as it would for a client that does not wait for others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from benchmarks.sections import NotMeasured
from streams.host.client import TopicReader
from streams.ports import Record


@dataclass(frozen=True, slots=True)
class Schedule:
    """When each of a row of messages is due, on the clock of `time.monotonic`."""

    began: float
    per_second: float

    def due(self, number: int) -> float:
        """The moment for a message, counted from 0."""
        return self.began + number / self.per_second

    async def moments(self, messages: int) -> AsyncIterator[tuple[int, float]]:
        """Each (number, due), not before it is due and as soon as it can be had after that."""
        for number in range(messages):
            due = self.due(number)
            early = due - time.monotonic()
            if early > 0:
                await asyncio.sleep(early)
            yield number, due


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds that half, 99 % and 99.9 % of all messages did not exceed, and the most that one took."""

    messages: int
    p50: float
    p99: float
    p999: float
    most: float

    def seconds(self) -> dict[str, float]:
        """By the names that people use."""
        return {"p50": self.p50, "p99": self.p99, "p99.9": self.p999, "max": self.most}


def latency_of(due: Mapping[str, float], seen: Mapping[str, float]) -> Latency:
    """From when each was due to when it was seen; what was due and never seen is left out, and has to be
    accounted for by the caller.

    Raises:
        NotMeasured: nothing was seen.
    """
    took = sorted(seen[name] - due[name] for name in due.keys() & seen.keys())
    if not took:
        raise NotMeasured("none of the messages came out")
    return Latency(
        len(took), percentile(took, 0.5), percentile(took, 0.99), percentile(took, 0.999), took[-1]
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the values that a share of them does not exceed (the nearest rank)."""
    rank = -int(-len(ordered) * share // 1)
    return ordered[max(rank, 1) - 1]


class Follower:
    """Reads topics beside what else happens; use it `async with`. `take` says what to do with a record."""

    def __init__(self, bootstrap: str, topics: Iterable[str]) -> None:
        self._reader = TopicReader(bootstrap, topics)

    async def __aenter__(self) -> Self:
        await self._reader.__aenter__()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._reader.__aexit__(kind, error, trace)

    def take(self, record: Record, now: float) -> None:
        """A record was read at `now`, on the clock of `time.monotonic`."""
        raise NotImplementedError

    def must_read(self) -> None:
        """Raises what has ended the reading, if it has ended."""
        if self._reading.done():
            self._reading.result()

    async def _read(self) -> None:
        while True:
            records = await self._reader.fetch()
            now = time.monotonic()
            for record in records:
                self.take(record, now)
