"""Orders through two workers of the demo's application, and the payment gateway over HTTP: how many in a
second, and how long one takes. An order is begun by the message that says which way it goes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec
import psutil

from agents.commands import OrderSubmitted
from agents.messages import Order, OrderCancelled, OrderConfirmed, OrderPlaced
from agents.settings import OrderSettings
from benchmarks.latency import Follower, Latency, Schedule, latency_of
from benchmarks.sections import Context, NotMeasured
from benchmarks.worker_process import BenchmarkWorker
from demo.evidence import make_codec
from demo.load import SOURCE, receive_stock
from demo.purchases import Purchase, order
from demo.workers import PROJECT
from streams.host.client import Producer
from streams.local import declared, local_stack
from streams.ports import Record

_MODULE = "agents.worker"
_WORKERS = 2
_OPEN_WITHIN = 90.0
_SETTLED_WITHIN = 300.0
_LOOK_EVERY = 0.05
#: How often the orders of the file may be begun, each time under other ids; there is stock for as many.
LAPS = 10
#: From making the schedule to its first order, in seconds.
_LEAD = 0.2

NOTHING_MORE: Mapping[str, str] = {}

#: What begins an order: placed, it is choreographed; submitted, it is orchestrated.
Begun = type[OrderPlaced] | type[OrderSubmitted]


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


#: The default; and the former one, with two lanes for each of these workers.
CUTS = (Cut(4, 2), Cut(8, 4))


class Pace:
    """Bursts of orders of one kind: orders settled in a second, and what each took of the workers."""

    def __init__(self) -> None:
        self._bursts: list[tuple[float, float]] = []

    def add(self, rate: float, cpu: float) -> str:
        """One more; returns what to say of it. `cpu` is in milliseconds for each order."""
        self._bursts.append((rate, cpu))
        return f"{rate:,.0f} orders/s, {cpu:.2f} ms of CPU each"

    @property
    def rates(self) -> list[float]:
        """Orders settled in a second, burst by burst."""
        return [rate for rate, _ in self._bursts]

    @property
    def rate(self) -> float:
        """Their median."""
        return median(self.rates)

    @property
    def cpu(self) -> float:
        """Milliseconds of the workers' processors for each order, the median."""
        return median(cpu for _, cpu in self._bursts)


def milliseconds(latency: Latency) -> dict[str, float]:
    """A latency's quantiles in ms."""
    return {name: round(value * 1000, 1) for name, value in latency.seconds().items()}


class OrderGround:
    """Two workers that own all lanes, and stock on the shelves; from `order_ground`, used `async with`."""

    def __init__(
        self,
        bootstrap: str,
        settings: OrderSettings,
        workers: Sequence[BenchmarkWorker],
        broker: int,
    ) -> None:
        """`broker` is its process id."""
        self._bootstrap = bootstrap
        self._settings = settings
        self._settlements = Settlements(bootstrap)
        self._broker = psutil.Process(broker)
        self.workers = workers

    async def __aenter__(self) -> OrderGround:
        for worker in self.workers:
            await worker.owns(self._settings.lanes // _WORKERS, within=_OPEN_WITHIN)
        await receive_stock(self._bootstrap, self._settings.app_id, LAPS)
        await self._settlements.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._settlements.__aexit__(*error)

    @property
    def settings(self) -> OrderSettings:
        """Those of the application that the workers run."""
        return self._settings

    @property
    def peak(self) -> int:
        """The most bytes that a worker had."""
        return max(worker.peak for worker in self.workers)

    def cpu_seconds(self) -> tuple[float, float]:
        """User and system time of the workers so far, and of the broker."""
        broker = self._broker.cpu_times()
        return sum(worker.cpu_seconds for worker in self.workers), float(broker.user + broker.system)

    async def burst(self, bought: Sequence[Purchase], kind: Begun, pace: Pace) -> str:
        """Begin all of these orders at once, and time them from the first that is sent to the last that is
        settled.
        """
        (before, _), began = self.cpu_seconds(), time.monotonic()
        async with self._producer() as producer:
            for each in bought:
                await producer.send(kind(order=order(each)), message_id=f"placed-{each.order_id}")
        ended = await self._settlements.of([each.order_id for each in bought], self.workers)
        return pace.add(len(bought) / (ended - began), (self.cpu_seconds()[0] - before) / len(bought) * 1000)

    async def latency(
        self,
        bought: Sequence[Purchase],
        kind: Begun,
        per_second: float,
        cards: Mapping[str, str] = NOTHING_MORE,
    ) -> Latency:
        """At a steady rate, from when an order was due to be sent to when its confirmation was read. Orders
        of `cards` are paid with another card, and do not count.
        """
        messages = [kind(order=_paid(order(each), cards)) for each in bought]
        due: dict[str, float] = {}
        async with self._producer() as producer:
            schedule = Schedule(time.monotonic() + _LEAD, per_second)
            async for number, moment in schedule.moments(len(messages)):
                message = messages[number]
                due[message.key] = moment
                await producer.send(message, message_id=f"placed-{message.key}")
        await self._settlements.of(due, self.workers)
        counted = {name: moment for name, moment in due.items() if name not in cards}
        return latency_of(counted, self._settlements.confirmed)

    def _producer(self) -> Producer:
        return Producer(self._bootstrap, make_codec, source=SOURCE)


def _paid(ordered: Order, cards: Mapping[str, str]) -> Order:
    card = cards.get(ordered.order_id)
    return ordered if card is None else msgspec.structs.replace(ordered, card=card)


@contextmanager
def order_ground(
    context: Context, cut: Cut, *, more: Mapping[str, str] = NOTHING_MORE
) -> Iterator[OrderGround]:
    """A local stack with this cut, and two workers that were started with `more` in their environment."""
    var = context.var / f"{cut.partitions}-{cut.lanes}"
    environment = {
        "STEADFAUST_VAR": str(var),
        "STEADFAUST_WEB_PORT": "0",
        "STEADFAUST_PARTITIONS": str(cut.partitions),
        "STEADFAUST_LANES": str(cut.lanes),
        **more,
    }
    project = PROJECT / "pyproject.toml"
    with (
        local_stack(var, tiered=True, processes=declared(project), say=context.say) as stack,
        ExitStack() as started,
    ):
        workers = [
            started.enter_context(BenchmarkWorker(_MODULE, environment, var / "log" / f"worker-{number}.log"))
            for number in range(_WORKERS)
        ]
        settings = OrderSettings(var=var, partitions=cut.partitions, lanes=cut.lanes)
        broker = stack.state.brokers[0].pid
        yield OrderGround(stack.bootstrap, settings, workers, broker)


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

    async def of(self, orders: Collection[str], workers: Sequence[BenchmarkWorker]) -> float:
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
