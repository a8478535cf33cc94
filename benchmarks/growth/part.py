"""What the parts of the growth section have in common."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.growth.ground import GrowthGround
from benchmarks.kafka import Rate
from benchmarks.sections import Context, ReportTable
from benchmarks.worker_process import BenchmarkWorker
from streams.local import local_stack


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """Where and how much to measure; `quick` takes less of everything."""

    bootstrap: str
    var: Path
    runs: int
    quick: bool
    say: Callable[[str], None]

    def sized(self, whole: int, quick: int) -> int:
        """The number that this run takes."""
        return quick if self.quick else whole

    def ground(self, name: str, **choices: Any) -> GrowthGround:
        """An application of this name."""
        return GrowthGround(self.bootstrap, self.var, f"growth-{name}", **choices)


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a part found: its table, and sentences about it."""

    table: ReportTable
    notes: Sequence[str] = ()


Part = Callable[[GrowthPlan], Coroutine[Any, Any, PartResult]]


def measured(context: Context, name: str, parts: Mapping[str, Part]) -> list[PartResult]:
    """Measure the parts of a section on one broker, one after the other."""
    # A new topic refuses its first records for a moment; aiokafka logs that for each partition, and retries.
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    with local_stack(context.var, tiered=True, say=context.say) as stack:
        plan = GrowthPlan(stack.bootstrap, context.var, context.runs, context.quick, context.say)
        results = []
        for part, measure in parts.items():
            context.say(f"{name}: {part}")
            results.append(asyncio.run(measure(plan)))
        return results


class SettingBursts:
    """Bursts of one setting, over its runs.

    Attributes:
        recovered: rows or ids a second when a worker opened without a local store; 0 where it had none.
    """

    def __init__(self) -> None:
        self.recovered = 0.0
        self._bursts: list[Rate] = []
        self._peak = 0

    async def take(self, ground: GrowthGround, *workers: BenchmarkWorker, events: int, keys: int) -> str:
        """Measure one, after a tenth of it to warm up; returns what to say of it."""
        await ground.burst(ground.events(events // 10, keys=keys), *workers)
        burst = await ground.burst(ground.events(events, keys=keys), *workers)
        self._bursts.append(burst)
        self._peak = max(self._peak, *(worker.peak for worker in workers))
        return f"{burst.per_second:,.0f} events/s, {burst.cpu:.1f} s of CPU for 100,000"

    @property
    def rate(self) -> float:
        """Events a second, the median."""
        return median(burst.per_second for burst in self._bursts)

    @property
    def cpu(self) -> float:
        """Processor time of the workers for 100,000 events, in seconds, the median."""
        return median(burst.cpu for burst in self._bursts)

    @property
    def peak(self) -> int:
        """The most memory that one worker took, in bytes."""
        return self._peak

    def cells(self) -> list[str]:
        """As a table has them: events/s, CPU, memory."""
        return [f"{self.rate:,.0f}", f"{self.cpu:.1f}", f"{self.peak / 1e6:,.0f}"]


BURST_COLUMNS = ("events/s", "CPU s / 100,000", "peak MB")


def ratio(of: float, to: float) -> str:
    """How it is printed."""
    return f"{of / to:.2f}"


def short(number: int) -> str:
    """10 thousand, 5 million."""
    for size, name in ((1_000_000, "million"), (1000, "thousand")):
        if number >= size and number % size == 0:
            return f"{number // size} {name}"
    return f"{number:,}"
