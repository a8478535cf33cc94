"""What a lane keeps from one opening to the next."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from streams.lane.measures import LaneMeasures
from streams.lane.signals import Signals
from streams.policy.reopening import Reopening
from streams.staging.arrival import Counters
from streams.staging.refusals import Refusals


@dataclass(frozen=True, slots=True)
class LaneMemory:
    """Of one lane, for as long as this worker has it.

    Attributes:
        number, topics: which lane it is, and the topics that it consumes.
        reopening: when it opens again after an error, and how large its transactions may be.
        counters, measures: what it has handled, and what it measures of itself.
        refusals: messages that the broker refuses.
        signals: how its tasks wake each other.
        stopping: set when it is to end.
    """

    number: int
    topics: tuple[str, ...]
    reopening: Reopening
    counters: Counters = field(default_factory=Counters)
    measures: LaneMeasures = field(default_factory=LaneMeasures)
    refusals: Refusals = field(default_factory=Refusals)
    signals: Signals = field(default_factory=Signals)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
