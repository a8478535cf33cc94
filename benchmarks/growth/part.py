"""What the parts of the growth section have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.growth.ground import GrowthGround
from benchmarks.rate import Rate
from benchmarks.sections import ReportTable
from benchmarks.worker_process import BenchmarkWorker


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
    """What a part found: its table, its numbers by name, sentences about them."""

    table: ReportTable
    numbers: Mapping[str, Any]
    notes: Sequence[str] = ()


Part = Callable[[GrowthPlan], Coroutine[Any, Any, PartResult]]


def measured(name: str, part: Part, plan: GrowthPlan) -> PartResult:
    """Measure a part of a section."""
    plan.say(name)
    return asyncio.run(part(plan))


class SettingBursts:
    """Bursts of one setting, over its runs."""

    def __init__(self) -> None:
        self._bursts: list[Rate] = []
        self._peak = 0

    async def take(
        self, ground: GrowthGround, *workers: BenchmarkWorker, events: int, keys: int, size: int = 0
    ) -> str:
        """Measure one, after a tenth of it to warm up; returns what to say of it."""
        await ground.burst(ground.events(events // 10, keys=keys, size=size), *workers)
        burst = await ground.burst(ground.events(events, keys=keys, size=size), *workers)
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

    def numbers(self) -> dict[str, float]:
        """As the report has them."""
        return {
            "events_per_second": round(self.rate),
            "cpu_seconds_per_100000": round(self.cpu, 1),
            "peak_mb": round(self.peak / 1e6),
        }

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


def bursts_by(settings: Iterable[Any]) -> dict[Any, SettingBursts]:
    """Empty bursts for each setting."""
    return {setting: SettingBursts() for setting in settings}
