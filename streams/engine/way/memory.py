"""Data that a lane keeps from one opening to the next, and signals by which its tasks wake each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from streams.engine.staging.arrival import Counters
from streams.engine.staging.refusals import Refusals
from streams.engine.way.measures import LaneMeasures
from streams.model.policy.reopening import Reopening


class Signals:
    """Signals by which the tasks of a lane wake each other.

    Attributes:
        work: there may be something to commit.
        room: there may be room for more messages.
        error: an error of a background task that ends the lane's session: a store that failed, or a bug of
            the library. Errors that handlers raise are settled elsewhere.
    """

    def __init__(self) -> None:
        self.work = asyncio.Event()
        self.room = asyncio.Event()
        self.error: BaseException | None = None

    def all(self) -> None:
        """Wake all tasks."""
        self.work.set()
        self.room.set()

    def progress(self, error: BaseException | None) -> None:
        """Wake all tasks after a background task has advanced or ended. The first `error` is kept."""
        self.error = self.error or error
        self.all()


@dataclass(frozen=True, slots=True)
class LaneMemory:
    """The data of one lane, for as long as this worker has it.

    Attributes:
        number, topics: which lane it is, and the topics that it consumes.
        reopening: when it opens again after an error, and how large its transactions may be.
        counters, measures: what it has handled, and its measurements for metrics.
        refusals: messages that the broker refuses.
        signals: how its tasks wake each other.
        stopping: set when the lane must stop.
    """

    number: int
    topics: tuple[str, ...]
    reopening: Reopening
    counters: Counters = field(default_factory=Counters)
    measures: LaneMeasures = field(default_factory=LaneMeasures)
    refusals: Refusals = field(default_factory=Refusals)
    signals: Signals = field(default_factory=Signals)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
