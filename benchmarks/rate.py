"""A rate from a topic's growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Shares of the growth between which it counts. Before, caches fill and code is compiled. After, a program
#: that works ahead of what it has written, as the lane does by some ten thousand events, only writes.
COUNTED = (0.3, 0.8)
#: The same of a program that is compiled while it runs. It gets more events, so that this is over by then.
COUNTED_WARM = (0.5, 0.8)


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
    """How fast a program was in the counted part.

    Attributes:
        per_second: events.
        cpu: seconds of processor time for 100,000 events.
    """

    per_second: float
    cpu: float


def rate_of(samples: Sequence[Sample], events: int, counted: tuple[float, float] = COUNTED) -> Rate:
    """The rate over the `counted` part of the growth; `samples` are those at which the topic grew.

    Markers of transactions are in the end offsets too, so the share of the growth counts, not the offset.

    Raises:
        ValueError: the topic grew in so few steps that there is no rate to tell.
    """
    end = samples[-1].end
    first, last = (next(sample for sample in samples if sample.end >= share * end) for share in counted)
    if first.end > sum(counted) / 2 * end or last.end > (1 + counted[1]) / 2 * end:
        raise ValueError(f"the topic grew by leaps ({len(samples)} steps in all): give it more events")
    grown = events * (last.end - first.end) / end
    return Rate(grown / (last.at - first.at), (last.cpu - first.cpu) / grown * 100_000)
