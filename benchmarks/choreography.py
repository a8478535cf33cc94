"""Orders through the whole choreography: two workers, and the payment gateway over HTTP, as in the demo."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from agents.messages import OrderPlaced
from benchmarks.latency import Latency
from benchmarks.orders import CUTS, LAPS, Cut, OrderGround, Pace, milliseconds, order_ground
from benchmarks.sections import Context, ReportTable, Section
from demo.purchases import Purchase, repeated

_PER_SECOND = 200
_NOTE = (
    "Orders are those of the demo, 94 % of which are confirmed; throughput counts all that were settled,"
    " latency the confirmed. Latency begins when an order was due by the schedule, whatever held its sender"
    " up, and ends when a reader of committed records has its confirmation. None is lost: the run fails"
    " where one is neither confirmed nor cancelled five minutes after the last was placed. With the default"
    " cut orders come at that rate for ten minutes before anything counts, and for the ten that count;"
    " with the other for one minute and a half: a JVM that has just started takes 1.5 times as long"
    " for the same. Sender, reader, gateway, broker and both workers share the machine's cores."
)


@dataclass(frozen=True, slots=True)
class ChoreographyResult:
    """What was found with one cut: throughput, latency at a steady rate and what an order took of workers and
    broker then, in milliseconds of processor time, and the most bytes of a worker.
    """

    cut: Cut
    pace: Pace
    latency: Latency
    workers: float
    broker: float
    peak: int


def measure(context: Context) -> Section:
    """With each cut: throughput first, then latency at a steady rate, by the same workers."""
    return _section([_with_cut(context, cut) for cut in CUTS])


def _with_cut(context: Context, cut: Cut) -> ChoreographyResult:
    context.say(f"{cut.title}:")
    with order_ground(context, cut) as ground:
        return asyncio.run(_measure(context, cut, ground))


async def _measure(context: Context, cut: Cut, ground: OrderGround) -> ChoreographyResult:
    burst, warm, seconds = (12_000, 600, 600) if cut is CUTS[0] else (12_000, 60, 30)
    if context.quick:
        burst, warm, seconds = 2000, 4, 8
    bought = repeated(LAPS)
    pace = Pace()

    def some(number: int) -> list[Purchase]:
        return list(islice(bought, number))

    async with ground:
        cold = await ground.latency(some(_PER_SECOND * warm), OrderPlaced, _PER_SECOND)
        context.say(f"  to warm up: {milliseconds(cold)} ms")
        for _ in range(context.runs):
            context.say(f"  {await ground.burst(some(burst), OrderPlaced, pace)}")
        before, counted = ground.cpu_seconds(), some(_PER_SECOND * seconds)
        latency = await ground.latency(counted, OrderPlaced, _PER_SECOND)
        workers, broker = (
            (after - was) / len(counted) * 1000
            for was, after in zip(before, ground.cpu_seconds(), strict=True)
        )
    return ChoreographyResult(cut, pace, latency, workers, broker, ground.peak)


def _section(found: Sequence[ChoreographyResult]) -> Section:
    quantiles = [milliseconds(each.latency) for each in found]
    tables = [
        ReportTable(
            "Orders through the whole choreography, two workers",
            ("", "orders/s", "CPU ms of the workers, each order", "peak MB of a worker"),
            [
                [each.cut.title, f"{each.pace.rate:,.0f}", f"{each.pace.cpu:.2f}", f"{each.peak / 1e6:,.0f}"]
                for each in found
            ],
        ),
        ReportTable(
            f"From OrderPlaced to OrderConfirmed at {_PER_SECOND} orders/s, in ms",
            ("", "confirmed orders", *quantiles[0], "CPU ms of the workers, each order", "of the broker"),
            [
                [
                    each.cut.title,
                    f"{each.latency.messages:,}",
                    *(f"{value:,.0f}" for value in ms.values()),
                    f"{each.workers:.2f}",
                    f"{each.broker:.2f}",
                ]
                for each, ms in zip(found, quantiles, strict=True)
            ],
        ),
    ]
    return Section("Choreography", tables, [_NOTE])
