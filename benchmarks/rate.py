"""A rate from a topic's growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The first events are not counted: caches fill, code is compiled.
WARM_UP = 0.3


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at a moment.

    Attributes:
        at: seconds on a clock that only goes forward.
        end: the sum of the topic's end offsets.
        cpu: seconds of processor time that the program had used.
    """

    at: float
    end: int
    cpu: float


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a program was after its warm-up.

    Attributes:
        per_second: events.
        cpu: seconds of processor time for 100,000 events.
    """

    per_second: float
    cpu: float


def rate_of(samples: Sequence[Sample], events: int) -> Rate:
    """The rate from the end of the warm-up to the last growth; `samples` are those at which the topic grew.

    Markers of transactions are in the end offsets too, so the share of the growth counts, not the offset.

    Raises:
        ValueError: the topic grew in so few steps that there is no rate to tell.
    """
    last = samples[-1]
    first = next(sample for sample in samples if sample.end >= WARM_UP * last.end)
    counted = events * (1 - first.end / last.end)
    if counted < events * (1 - WARM_UP) / 2:
        raise ValueError(f"the topic grew by half at once ({len(samples)} steps in all): give it more events")
    return Rate(counted / (last.at - first.at), (last.cpu - first.cpu) / counted * 100_000)
