"""Many sagas in flight in one worker, their participants silent: what they take, and how fast they end."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agents.commands import (
    CancelOrder,
    CapturePayment,
    ConfirmOrder,
    OrderSagaReply,
    OrderSubmitted,
    ReleaseStock,
    ScheduleShipment,
)
from agents.gateway.cards import ACCEPTED
from agents.messages import Order, OrderLine
from benchmarks.growth.ground import GrowthGround
from benchmarks.growth.packing import Packed, fill
from benchmarks.growth.part import GrowthPlan, PartResult, short
from benchmarks.latency import Follower
from benchmarks.sagas.workload import FLIGHT, TIMEOUT
from benchmarks.sections import NotMeasured, ReportTable
from benchmarks.worker_process import BenchmarkWorker
from streams.model.envelope import ID, SOURCE
from streams.model.message import Message
from streams.ports import Record

LANES = 4
_CLIENT = b"flight"
_PREFIX = "flight-"
#: Sagas of the first that begin at once: more of them are more messages in hand, whatever is in flight.
_AT_ONCE = 5000
_LOOK_EVERY = 0.05
_ANSWER_EVERY = 0.5
_SEEN_WITHIN = 300.0
_IDLE_WITHIN = 60.0
#: Each step, and what the saga sends when it is done.
STEPS: dict[str, type[Message]] = {
    "reserve_inventory": CapturePayment,
    "process_payment": ScheduleShipment,
    "schedule_shipping": ConfirmOrder,
}
_NOTE = (
    "In flight: the order's saga by itself, with its Avro schemas, in one worker of 4 lanes; its participants"
    f" are elsewhere, and silent. {_AT_ONCE:,} begin at a time, and the next when they have; then the"
    " benchmark answers for all participants, step by step and as many at a time. After that as many begin"
    " all at once, without answers: each times out after {timeout:.0f} s and asks for its compensation,"
    " which is answered. That row's seconds are from the first deadline to the last end; deadlines come at"
    " the pace at which the sagas began. Every saga was checked to have sent each command, and its end, once."
    " MB is resident memory once the worker rests, the most until then beside it: a burst"
    " is thousands of messages in hand, whatever is in flight."
)


@dataclass(frozen=True, slots=True)
class FlightStage:
    """What happened, to how many sagas in how many seconds; and the worker's bytes after it and at most."""

    title: str
    sagas: int
    seconds: float
    memory: int
    peak: int

    def cells(self) -> list[str]:
        """As the table has them."""
        rate = f"{self.sagas / self.seconds:,.0f}" if self.seconds else "-"
        taken = f"{self.seconds:,.1f}" if self.seconds else "-"
        return [self.title, taken, rate, f"{self.memory / 1e6:,.0f}", f"{self.peak / 1e6:,.0f}"]


async def measure(plan: GrowthPlan) -> PartResult:
    """Once: begun in three bursts, answered to their end; begun again, and timed out."""
    sizes = (1000, 25_000, 100_000) if not plan.quick else (500, 1000, 4000)
    timeout = 120.0 if not plan.quick else 12.0
    stages, late = await fly(plan, sizes, timeout)
    table = ReportTable(
        f"{short(sizes[-1])} sagas in flight, one worker (4 lanes)",
        ("", "seconds", "sagas/s", "MB", "most MB"),
        [stage.cells() for stage in stages],
    )
    last = f"The last of those that timed out requested its compensation {late:.1f} s after its deadline."
    return PartResult(table, [_NOTE.format(timeout=timeout), last])


async def fly(plan: GrowthPlan, sizes: Sequence[int], timeout: float) -> tuple[list[FlightStage], float]:
    """What happens in a flight up to each of these sizes; and by how many seconds the last of those that
    timed out was late to ask for its compensation. Raises NotMeasured.
    """
    most = sizes[-1]
    async with _ground(plan, timeout) as ground:
        with ground.worker() as worker:
            await worker.lanes_open(LANES)
            flight = Flight(plan, ground, worker, timeout)
            async with flight.seen:
                await flight.rests("none in flight", 0, 0.0)
                for before, size in zip((0, *sizes), sizes, strict=False):
                    title = f"begun, up to {short(size)}"
                    await flight.begin(range(before, size), title, at_once=_AT_ONCE)
                await flight.answer(range(most))
                await flight.begin(range(most, 2 * most), f"begun again, {short(most)} at once", at_once=most)
                return flight.stages, await flight.time_out(range(most, 2 * most))


def _ground(plan: GrowthPlan, timeout: float) -> GrowthGround:
    setting: dict[str, Any] = {TIMEOUT.removeprefix("STEADFAUST_"): str(timeout)}
    return GrowthGround(plan.bootstrap, plan.var, "sagas-flight", lanes=LANES, workload=FLIGHT, **setting)


class Flight:
    """Sagas by number, and what has become of them."""

    def __init__(
        self, plan: GrowthPlan, ground: GrowthGround, worker: BenchmarkWorker, timeout: float
    ) -> None:
        self.stages: list[FlightStage] = []
        self.seen = SeenSagas(ground.bootstrap, [*STEPS.values(), ReleaseStock, CancelOrder], worker)
        self._plan = plan
        self._ground = ground
        self._worker = worker
        self._timeout = timeout
        self._began = self._begun = 0.0

    async def begin(self, numbers: range, title: str, *, at_once: int) -> None:
        """Have these begin, so many at once and the next when they have."""
        self._began, seconds = time.monotonic(), 0.0
        for first in range(0, len(numbers), at_once):
            some = numbers[first : first + at_once]
            rate = await self._ground.burst(submitted(self._ground, some), self._worker)
            seconds += len(some) / rate.per_second
        self._begun = time.monotonic()
        await self.rests(title, len(numbers), seconds)

    async def answer(self, numbers: range) -> None:
        """Have every step of these succeed, one after the other, and as many at once as began at once."""
        began = time.monotonic()
        for step, then in STEPS.items():
            for first in range(0, len(numbers), _AT_ONCE):
                some = numbers[first : first + _AT_ONCE]
                await self._send_replies(some, step, attempt=1)
                await self.seen.each_once(then, some)
        await self.rests("answered, three steps: completed", len(numbers), time.monotonic() - began)

    async def time_out(self, numbers: range) -> float:
        """Have these time out, and answer their compensations as they come; returns how long after the last
        deadline the last of them requested it, in seconds.
        """
        last, give_up = self._begun + self._timeout, time.monotonic() + self._timeout + _SEEN_WITHIN
        answered: set[int] = set()
        while len(answered) < len(numbers):
            if waiting := self.seen.numbers(ReleaseStock) - answered:
                await self._send_replies(sorted(waiting), "reserve_inventory", attempt=2)
                answered |= waiting
            if time.monotonic() > give_up:
                raise NotMeasured(f"{len(numbers) - len(answered):,} sagas did not time out")
            await asyncio.sleep(_ANSWER_EVERY)
        late = time.monotonic() - last
        await self.seen.each_once(ReleaseStock, numbers)
        await self.seen.each_once(CancelOrder, numbers)
        took = time.monotonic() - (self._began + self._timeout)
        await self.rests("not answered: timed out, undone", len(numbers), took)
        return late

    async def _send_replies(self, numbers: Sequence[int], step: str, *, attempt: int) -> None:
        records = replies(self._ground, numbers, step, attempt=attempt)
        await fill(self._ground.bootstrap, OrderSagaReply.TOPIC, records, at_once=len(numbers))

    async def rests(self, title: str, sagas: int, seconds: float) -> None:
        """Note a stage, once the worker rests."""
        await self._worker.idle(within=_IDLE_WITHIN)
        self.stages.append(FlightStage(title, sagas, seconds, self._worker.memory, self._worker.peak))
        self._plan.say("  " + ", ".join(self.stages[-1].cells()))


class SeenSagas(Follower):
    """Sees what sagas send, by topic; use it `async with`."""

    def __init__(self, bootstrap: str, kinds: Iterable[type[Message]], worker: BenchmarkWorker) -> None:
        self._keys: defaultdict[str, set[bytes]] = defaultdict(set)
        self._records: defaultdict[str, int] = defaultdict(int)
        self._worker = worker
        super().__init__(bootstrap, [kind.TOPIC for kind in kinds])

    def take(self, record: Record, now: float) -> None:
        """A saga has sent something."""
        del now
        self._keys[record.topic].add(record.key or b"")
        self._records[record.topic] += 1

    def numbers(self, kind: type[Message]) -> set[int]:
        """The sagas that have sent it."""
        return {int(key[len(_PREFIX) :]) for key in self._keys[kind.TOPIC]}

    async def each_once(self, kind: type[Message], numbers: range, *, within: float = _SEEN_WITHIN) -> None:
        """Wait until each of these sagas has sent it. Raises NotMeasured when one does not, or did twice."""
        expected = {name_of(number).encode() for number in numbers}
        deadline = time.monotonic() + within
        keys = self._keys[kind.TOPIC]
        while not (len(keys) >= len(expected) and expected <= keys):
            self.must_read()
            self._worker.must_run(f"all sagas have sent {kind.__name__}")
            if time.monotonic() > deadline:
                left = len(expected - keys)
                raise NotMeasured(f"{left:,} sagas did not send {kind.__name__}: see {self._worker.log}")
            await asyncio.sleep(_LOOK_EVERY)
        if self._records[kind.TOPIC] != len(keys):
            raise NotMeasured(f"{self._records[kind.TOPIC] - len(keys):,} sent {kind.__name__} again")


def name_of(number: int) -> str:
    """The order of a number."""
    return f"{_PREFIX}{number}"


def submitted(ground: GrowthGround, numbers: Iterable[int]) -> Iterator[Packed]:
    """What begins these sagas: orders of two lines."""
    encode = ground.app.message_codecs[OrderSubmitted.TOPIC].encode
    for number in numbers:
        lines = tuple(OrderLine(sku=f"sku-{(number + i) % 500:03d}", units=1 + i) for i in range(2))
        order = Order(
            order_id=name_of(number),
            customer=f"customer-{number % 5000}",
            lines=lines,
            total_cents=1000,
            card=ACCEPTED,
            country="US",
        )
        key, value = order.order_id.encode(), encode(OrderSubmitted(order=order))
        yield ground.partition_of(key), key, value, [(ID, b"submitted-%b" % key), (SOURCE, _CLIENT)]


def replies(ground: GrowthGround, numbers: Iterable[int], step: str, *, attempt: int) -> Iterator[Packed]:
    """The success of an attempt at a step, for each of these sagas."""
    encode = ground.app.message_codecs[OrderSagaReply.TOPIC].encode
    for number in numbers:
        saga = f"order:{name_of(number)}"
        command = f"{saga}:{step}:{attempt}"
        reply = OrderSagaReply(saga_id=saga, step=step, command_id=command, outcome="success")
        key = reply.key.encode()
        yield ground.partition_of(key), key, encode(reply), [(ID, command.encode()), (SOURCE, _CLIENT)]
