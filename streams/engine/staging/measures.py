"""Measurements of a worker's handlers for metrics: numbers that only grow, over all its lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

#: Seconds: a row and an event take a tenth of a millisecond, a call to the outside up to its patience.
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
    """How often values came up to each bound, and their sum; as a histogram of Prometheus has it.

    Attributes:
        bounds: ascending; a value equal to one belongs to it.
        counts: values of each bound's own, not those of smaller ones; the last is beyond all bounds.
        total: the sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value. Nothing is allocated but the sum: every message comes by here."""
        bounds, place = self.bounds, 0
        while place < len(bounds) and bounds[place] < value:  # most belong to the first
            place += 1
        self.counts[place] += 1
        self.total += value


class HandlerMeasures:
    """Measurements of one handler, over all lanes that the worker has had.

    Attributes:
        succeeded, failed: seconds of its attempts: the payload and rows are read, it runs, its outcome is
            staged.
        failures: failed attempts by what kind of error it was, and by what was decided.
        retries: retries by tier; tier 0 is at once, in the lane.
    """

    __slots__ = ("failed", "failures", "retries", "succeeded")

    def __init__(self) -> None:
        self.succeeded = Distribution(DURATIONS)
        self.failed = Distribution(DURATIONS)
        self.failures: Counter[tuple[str, str]] = Counter()
        self.retries: Counter[int] = Counter()


#: By handler; empty where nothing is measured.
Measures = Mapping[str, HandlerMeasures]
