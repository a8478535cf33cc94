"""Orders that a saga conducts, beside as many that are choreographed, by the same two workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from benchmarks.latency import Latency
from benchmarks.orders import CUTS, LAPS, Begun, Cut, OrderGround, Pace, milliseconds, order_ground
from benchmarks.sections import Context, ReportTable, Section
from demo.purchases import Purchase, repeated

_KINDS: dict[str, Begun] = {"choreographed": OrderPlaced, "orchestrated": OrderSubmitted}
_PER_SECOND = 100
_NOTE = (
    "Orders: those of the demo, half of them placed and half submitted, in turns, by the same two workers;"
    " rates and latencies as in the section on the choreography, after half a minute of each kind at that"
    " rate. The ratio is the median of those of bursts of the same round."
)


@dataclass(frozen=True, slots=True)
class SagaResult:
    """What was found with one cut, by kind; `peak` is the most bytes that a worker had."""

    cut: Cut
    paces: dict[str, Pace]
    latencies: dict[str, Latency]
    peak: int

    def ratio(self, kind: str) -> float:
        """Its rate by that of the choreographed orders."""
        pairs = zip(self.paces[kind].rates, self.paces["choreographed"].rates, strict=True)
        return median(one / other for one, other in pairs)


def measure(context: Context) -> Section:
    """With each cut: throughput of both kinds in turns, then their latency at a steady rate."""
    return _section([_with_cut(context, cut) for cut in CUTS])


def _with_cut(context: Context, cut: Cut) -> SagaResult:
    context.say(f"sagas: orders, {cut.title}")
    with order_ground(context, cut) as ground:
        return asyncio.run(_measure(context, cut, ground))


async def _measure(context: Context, cut: Cut, ground: OrderGround) -> SagaResult:
    burst, warm, seconds = (1000, 4, 8) if context.quick else (8000, 30, 30)
    bought = repeated(LAPS)
    paces = {name: Pace() for name in _KINDS}
    latencies: dict[str, Latency] = {}

    def some(number: int) -> list[Purchase]:
        return list(islice(bought, number))

    async with ground:
        for kind in _KINDS.values():
            await ground.latency(some(_PER_SECOND * warm), kind, _PER_SECOND)
        for _ in range(context.runs):
            for name, kind in _KINDS.items():
                progress = await ground.burst(some(burst), kind, paces[name])
                context.say(f"  {name}: {progress}")
        for name, kind in _KINDS.items():
            latencies[name] = await ground.latency(some(_PER_SECOND * seconds), kind, _PER_SECOND)
            context.say(f"  {name}: {milliseconds(latencies[name])} ms")
    return SagaResult(cut, paces, latencies, ground.peak)


def _section(found: Sequence[SagaResult]) -> Section:
    rates = ReportTable(
        "Orders through two workers",
        ("", "orders/s", "ratio", "CPU ms of the workers, each order", "peak MB of a worker"),
        [
            [
                f"{name}, {each.cut.title}",
                f"{pace.rate:,.0f}",
                f"{each.ratio(name):.2f}",
                f"{pace.cpu:.2f}",
                f"{each.peak / 1e6:,.0f}",
            ]
            for each in found
            for name, pace in each.paces.items()
        ],
    )
    latencies = ReportTable(
        f"From its beginning to OrderConfirmed at {_PER_SECOND} orders/s, in ms",
        ("", "confirmed orders", *milliseconds(found[0].latencies["orchestrated"])),
        [
            [
                f"{name}, {each.cut.title}",
                f"{latency.messages:,}",
                *(f"{value:,.0f}" for value in milliseconds(latency).values()),
            ]
            for each in found
            for name, latency in each.latencies.items()
        ],
    )
    return Section("", [rates, latencies], [_NOTE])
