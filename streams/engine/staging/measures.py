"""Measurements of a worker's handlers for metrics: numbers that only grow, over all its lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

#: Bounds in seconds: from a tenth of a millisecond for a row and an event, to calls of outside systems.
DURATIONS: Final[tuple[float, ...]] = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.05,
    0.25,
    1.0,
    5.0,
    30.0,
)


class Distribution:
    """A histogram: the number of values up to each bound, and their sum.

    Attributes:
        bounds: ascending; a value equal to a bound belongs to it.
        counts: values for each bound, without those of smaller ones; the last is for values above all.
        total: the sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value. Only the sum is allocated, because this runs for every message."""
        bounds, place = self.bounds, 0
        while place < len(bounds) and bounds[place] < value:  # most values belong to the first bounds
            place += 1
        self.counts[place] += 1
        self.total += value


class HandlerMeasures:
    """Measurements of one handler, over all lanes that the worker has had.

    Attributes:
        succeeded, failed: seconds of its attempts, which include reading payload and rows, and staging the
            outcome.
        failures: failed attempts by kind of error and by decision.
        retries: retries by tier; tier 0 is an immediate retry in the lane.
    """

    __slots__ = ("failed", "failures", "retries", "succeeded")

    def __init__(self) -> None:
        self.succeeded = Distribution(DURATIONS)
        self.failed = Distribution(DURATIONS)
        self.failures: Counter[tuple[str, str]] = Counter()
        self.retries: Counter[int] = Counter()


#: Measurements by handler; empty if nothing is measured.
Measures = Mapping[str, HandlerMeasures]
