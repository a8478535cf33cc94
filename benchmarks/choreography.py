"""Orders through the whole choreography: two workers, and the payment gateway over HTTP, as in the demo."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from agents.messages import OrderCancelled, OrderConfirmed, OrderPlaced
from agents.settings import OrderSettings
from benchmarks.follower import Follower
from benchmarks.latency import Latency, Schedule, latency_of
from benchmarks.sections import Context, NotMeasured, Section, Table
from benchmarks.worker_process import WorkerProcess
from demo.evidence import make_codec
from demo.load import SOURCE, place_orders, receive_stock
from demo.purchases import Purchase, order, purchases
from demo.workers import PROJECT
from streams.local import Stack, declared, local_stack
from streams.ports import Record
from streams.runtime.client import Producer

SECTION = "choreography"

_MODULE = "agents.worker"
_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Cut:
    """How the application is cut, which is what a transaction costs: every partition in it has a batch and a
    marker, and every lane has transactions of its own.
    """

    partitions: int
    lanes: int

    @property
    def title(self) -> str:
        """As people say it."""
        return f"{self.partitions} partitions, {self.lanes} lanes"


#: The default, which has room for eight workers; and what suits two of them on a machine of two cores.
_CUTS = (Cut(16, 8), Cut(4, 2))
_PER_SECOND = 200
_OPEN_WITHIN = 90.0
_SETTLED_WITHIN = 300.0
_LOOK_EVERY = 0.05
#: From making the schedule to its first order, in seconds.
_LEAD = 0.2
_NOTE = (
    "Orders are those of the demo, 94 % of which are confirmed; throughput counts all that were settled,"
    " latency the confirmed. Latency begins when an order was due by the schedule, whatever held its sender"
    " up, and ends when a reader of committed records has its confirmation. Sender, reader, gateway, broker"
    " and both workers share the machine's cores."
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found with one cut: orders settled in a second, milliseconds of the workers' processors for
    each, latency at a steady rate, and the most bytes that a worker had.
    """

    cut: Cut
    rate: float
    cpu: float
    latency: Latency
    peak: int

    @property
    def milliseconds(self) -> dict[str, float]:
        """The latency's quantiles."""
        return {name: round(value * 1000, 1) for name, value in self.latency.seconds().items()}


def measure(context: Context) -> Section:
    """With each cut: throughput first, then latency at a steady rate, by the same workers."""
    return _section([_with_cut(context, cut) for cut in _CUTS])


def _with_cut(context: Context, cut: Cut) -> Measured:
    context.say(f"{cut.title}:")
    var = context.var / f"{cut.partitions}-{cut.lanes}"
    settings = OrderSettings(var=var, partitions=cut.partitions, lanes=cut.lanes)
    with (
        local_stack(
            var, tiered=True, processes=declared(PROJECT / "pyproject.toml"), say=context.say
        ) as stack,
        ExitStack() as started,
    ):
        environment = {
            "STEADFAUST_VAR": str(var),
            "STEADFAUST_WEB_PORT": "0",
            "STEADFAUST_PARTITIONS": str(cut.partitions),
            "STEADFAUST_LANES": str(cut.lanes),
        }
        workers = [
            started.enter_context(WorkerProcess(_MODULE, environment, var / "log" / f"worker-{number}.log"))
            for number in range(_WORKERS)
        ]
        return asyncio.run(_measure(context, cut, stack, settings, workers))


async def _measure(
    context: Context, cut: Cut, stack: Stack, settings: OrderSettings, workers: Sequence[WorkerProcess]
) -> Measured:
    burst, seconds = (2000, 8) if context.quick else (12_000, 30)
    for worker in workers:
        await worker.owns(settings.lanes // _WORKERS, within=_OPEN_WITHIN)
    await receive_stock(stack.bootstrap, settings.app_id)
    bought = purchases(context.runs * burst + _PER_SECOND * seconds)
    rates, cpus = [], []
    async with Settlements(stack.bootstrap) as settlements:
        for run in range(context.runs):
            before = _cpu(workers)
            rates.append(await _rate(stack, settlements, bought[run * burst :][:burst], workers))
            cpus.append((_cpu(workers) - before) / burst * 1000)
            context.say(f"  {rates[-1]:,.0f} orders/s, {cpus[-1]:.2f} ms of CPU each")
        latency = await _latency(stack, settlements, bought[context.runs * burst :], workers)
    return Measured(cut, median(rates), median(cpus), latency, max(worker.peak for worker in workers))


class Settlements(Follower):
    """Sees orders come to an end, as a reader of what is committed does; use it `async with`.

    Attributes:
        confirmed: order id -> when its OrderConfirmed was read, on the clock of `time.monotonic`.
        cancelled: the same of OrderCancelled.
    """

    def __init__(self, bootstrap: str) -> None:
        self.confirmed: dict[str, float] = {}
        self.cancelled: dict[str, float] = {}
        super().__init__(bootstrap, [OrderConfirmed.TOPIC, OrderCancelled.TOPIC])

    def take(self, record: Record, now: float) -> None:
        """An order has come to its end."""
        seen = self.confirmed if record.topic == OrderConfirmed.TOPIC else self.cancelled
        seen.setdefault((record.key or b"").decode(), now)

    async def of(self, orders: Collection[str], workers: Sequence[WorkerProcess]) -> float:
        """Wait until all of these have come to an end; returns when the last one had.

        Raises:
            NotMeasured: they did not in time, or a worker has ended.
        """
        deadline = time.monotonic() + _SETTLED_WITHIN
        while left := [each for each in orders if each not in self.confirmed and each not in self.cancelled]:
            self.must_read()
            for worker in workers:
                worker.must_run("all orders were settled")
            if time.monotonic() > deadline:
                raise NotMeasured(
                    f"{len(left):,} of {len(orders):,} orders were not settled within {_SETTLED_WITHIN:g} s:"
                    f" see {workers[0].log.parent}"
                )
            await asyncio.sleep(_LOOK_EVERY)
        return max(self.confirmed.get(each) or self.cancelled[each] for each in orders)


async def _rate(
    stack: Stack, settlements: Settlements, bought: Sequence[Purchase], workers: Sequence[WorkerProcess]
) -> float:
    """Orders settled in a second, from the first placed to the last settled."""
    began = time.monotonic()
    await place_orders(stack.bootstrap, bought, lambda: None)
    ended = await settlements.of([each.order_id for each in bought], workers)
    return len(bought) / (ended - began)


async def _latency(
    stack: Stack, settlements: Settlements, bought: Sequence[Purchase], workers: Sequence[WorkerProcess]
) -> Latency:
    """From when an order was due to be placed to when its confirmation was read."""
    messages = [OrderPlaced(order=order(each)) for each in bought]
    due: dict[str, float] = {}
    async with Producer(stack.bootstrap, make_codec, source=SOURCE) as producer:
        schedule = Schedule(time.monotonic() + _LEAD, _PER_SECOND)
        async for number, moment in schedule.moments(len(messages)):
            message = messages[number]
            due[message.key] = moment
            await producer.send(message, message_id=f"placed-{message.key}")
    await settlements.of(due, workers)
    return latency_of(due, settlements.confirmed)


def _cpu(workers: Sequence[WorkerProcess]) -> float:
    return sum(worker.cpu_seconds for worker in workers)


def _section(found: Sequence[Measured]) -> Section:
    tables = [
        Table(
            "Orders through the whole choreography, two workers",
            ("", "orders/s", "CPU ms of the workers, each order", "peak MB of a worker"),
            [
                [each.cut.title, f"{each.rate:,.0f}", f"{each.cpu:.2f}", f"{each.peak / 1e6:,.0f}"]
                for each in found
            ],
        ),
        Table(
            f"From OrderPlaced to OrderConfirmed at {_PER_SECOND} orders/s, in ms",
            ("", "confirmed orders", *found[0].milliseconds),
            [
                [
                    each.cut.title,
                    f"{each.latency.messages:,}",
                    *(f"{value:,.0f}" for value in each.milliseconds.values()),
                ]
                for each in found
            ],
        ),
    ]
    numbers = [
        {
            "partitions": each.cut.partitions,
            "lanes": each.cut.lanes,
            "orders_per_second": round(each.rate),
            "cpu_ms_per_order": round(each.cpu, 2),
            "worker_peak_mb": round(each.peak / 1e6),
            "latency_ms_at_200": {"orders": each.latency.messages, **each.milliseconds},
        }
        for each in found
    ]
    return Section("Choreography", tables, {SECTION: numbers}, [_NOTE])
