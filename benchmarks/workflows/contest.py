"""What contenders have in common: each is given the same orders, and is judged in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Protocol

import psutil

from benchmarks.latency import Latency
from benchmarks.sections import Context, NotMeasured
from demo.evidence import DemoEvidence
from demo.purchases import Purchase
from demo.verdict import judge

#: Orders a second at which latency is measured, of those that keep up.
PER_SECOND = 100.0
#: A rate that each can keep up with: only there are latencies of all like for like.
FEW_PER_SECOND = 10.0
#: What a burst must reach, in terms of a rate, for orders to be sent at it; and the share of a slower burst.
_AMPLE, _SHARE = 1.25, 0.6
_STEP = 5.0


@dataclass(frozen=True, slots=True)
class SubmittedOrders:
    """Orders that were submitted at once.

    Attributes:
        seconds: from the first that was due to the last that was settled.
        workers: seconds of processor of the workers, until nothing was under way any more.
        servers: the same of each server, by its name.
    """

    orders: int
    seconds: float
    workers: float
    servers: Mapping[str, float]

    @property
    def rate(self) -> float:
        """Orders settled in a second."""
        return self.orders / self.seconds

    def each(self, seconds: float) -> float:
        """Milliseconds of processor for each order."""
        return seconds / self.orders * 1000

    def says(self) -> str:
        """For the line of progress."""
        servers = ", ".join(f"{self.each(cpu):.2f} of {name}" for name, cpu in self.servers.items())
        return f"{self.rate:,.0f} orders/s, {self.each(self.workers):.2f} ms of CPU each, {servers}"


class Conducted(Protocol):
    """Two workers that conduct orders."""

    async def burst(self, bought: Sequence[Purchase]) -> SubmittedOrders:
        """Submit these at once and wait for the end of each. Raises NotMeasured."""

    async def latency(self, bought: Sequence[Purchase], per_second: float) -> Latency:
        """Of those that are confirmed, from when each was due to its end. Raises NotMeasured."""

    async def evidence(self) -> DemoEvidence:
        """The ends of orders, money and stock."""


#: Starts a contender in an empty directory.
Start = Callable[[Context, Path], AbstractAsyncContextManager[Conducted]]


@dataclass(slots=True)
class Contender:
    """Who conducts orders, and what was found.

    Attributes:
        name: in the report.
        title: in the table.
        start: with its workers, its server and stock on the shelves.
        ours: it is the project's, so that it must not fail.
        per_second: the rate at which latency is measured; 0: not yet known.
        failed: why it was given up; empty when it was not.
    """

    name: str
    title: str
    start: Start
    ours: bool = False
    per_second: float = 0.0
    failed: str = ""
    bursts: list[SubmittedOrders] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    of_few: list[Latency] = field(default_factory=list)

    @property
    def measured(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.bursts and self.latencies)

    @property
    def rate(self) -> float:
        """Orders a second, the median."""
        return median(burst.rate for burst in self.bursts)

    def ratio(self, to: Contender) -> float:
        """Its rate by that of another, the median of those of the same run."""
        pairs = zip(self.bursts, to.bursts, strict=False)
        return median(one.rate / other.rate for one, other in pairs)

    @property
    def workers(self) -> float:
        """Milliseconds of the workers' processors for each order, the median."""
        return median(burst.each(burst.workers) for burst in self.bursts)

    @property
    def servers(self) -> dict[str, float]:
        """The same of each server."""
        names = self.bursts[0].servers
        return {name: median(burst.each(burst.servers[name]) for burst in self.bursts) for name in names}


def quantiles(latencies: Sequence[Latency]) -> dict[str, float]:
    """Of latencies in ms, each the median over the runs."""
    runs = [latency.seconds() for latency in latencies]
    return {name: round(median(run[name] for run in runs) * 1000, 1) for name in runs[0]}


@dataclass(frozen=True, slots=True)
class ContestAmounts:
    """Orders of the burst that warms up and of the one that counts, and seconds of the steady rate."""

    warm: int
    burst: int
    seconds: int


def amounts(contender: Contender, *, quick: bool) -> ContestAmounts:
    """Engines get fewer orders: each takes them longer, and their rate is there from the first second."""
    if quick:
        return ContestAmounts(200, 1000, 5) if contender.ours else ContestAmounts(60, 300, 5)
    return ContestAmounts(500, 8000, 20) if contender.ours else ContestAmounts(200, 1500, 20)


def steady_rate(settled_per_second: float) -> float:
    """The rate at which latency is measured of one that settled so many in a burst."""
    if settled_per_second >= PER_SECOND * _AMPLE:
        return PER_SECOND
    return max(_STEP, settled_per_second * _SHARE // _STEP * _STEP)


async def judged(conducted: Conducted, submitted: Sequence[Purchase]) -> None:
    """Hold the ends of all orders against what their data call for, as the demo's check does.

    Raises:
        NotMeasured: something does not add up.
    """
    verdict = judge(submitted, await conducted.evidence())
    if wrong := [each for each in verdict.findings if not each.passed]:
        raise NotMeasured("; ".join(f"{each.name}: {each.says}" for each in wrong))


def cpu_of(pids: Iterable[int]) -> float:
    """Seconds of processor of these processes and all that they have started, so far."""
    total = 0.0
    for pid in pids:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # what it took is its parent's by now
                total += sum(process.cpu_times()[:4])
    return total
