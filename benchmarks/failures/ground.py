"""One application of the failures workload on a broker, and what comes out of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Sequence

import msgspec
from aiokafka import AIOKafkaProducer

from benchmarks.failures.workload import FAILURES, calls_topic, counted_topic
from benchmarks.growth.ground import GrowthGround, coprime
from benchmarks.growth.packing import Packed
from benchmarks.growth.part import GrowthPlan
from benchmarks.latency import Follower, Schedule
from benchmarks.sections import NotMeasured
from benchmarks.worker_process import BenchmarkWorker
from streams.model.envelope import ID, SOURCE
from streams.ports import Record

LANES = 4

_CLIENT = b"failures"
_COUNTED_WITHIN = 300.0
_LOOK_EVERY = 0.05
#: From making the schedule to its first message, in seconds.
_LEAD = 0.2
_number_in = msgspec.json.Decoder(dict[str, int | str]).decode


def ground_of(plan: GrowthPlan, name: str) -> GrowthGround:
    """An application of this name, in four lanes."""
    return GrowthGround(plan.bootstrap, plan.var, f"failures-{name}", lanes=LANES, workload=FAILURES)


def event(ground: GrowthGround, number: int, key: bytes, fails: int = 0) -> Packed:
    """The event with a number, whose handler fails so often before it succeeds."""
    value = b'{"k":"%s","i":%d,"fails":%d}' % (key, number, fails)
    return ground.partition_of(key), key, value, [(ID, b"%d" % number), (SOURCE, _CLIENT)]


def events(ground: GrowthGround, number: int, *, keys: int, fails: int, every: int) -> Iterator[Packed]:
    """So many events in strides over all keys; on each `every`-th of them the handler fails at first."""
    stride = coprime(keys)
    for i in range(number):
        yield event(ground, i, b"k%d" % (i * stride % keys), fails if i % every == 0 else 0)


class Counted(Follower):
    """Sees events come out, as a reader of what is committed does; use it `async with`.

    Attributes:
        seen: number of an event -> when it was read first, on the clock of `time.monotonic`.
        doubled: how many were read again.
    """

    def __init__(self, ground: GrowthGround) -> None:
        self.seen: dict[int, float] = {}
        self.doubled = 0
        super().__init__(ground.bootstrap, [counted_topic(ground.name)])

    def take(self, record: Record, now: float) -> None:
        """An event has come out."""
        number = int(_number_in(record.value or b"")["i"])
        if number in self.seen:
            self.doubled += 1
        else:
            self.seen[number] = now

    async def each_once(self, expected: Collection[int], worker: BenchmarkWorker) -> None:
        """Wait until all of these have come out. Raises NotMeasured when they do not, or one came twice."""
        deadline = time.monotonic() + _COUNTED_WITHIN
        while len(self.seen) < len(expected) or any(number not in self.seen for number in expected):
            self.must_read()
            worker.must_run("all events came out")
            if time.monotonic() > deadline:
                left = sum(number not in self.seen for number in expected)
                raise NotMeasured(f"{left:,} of {len(expected):,} events did not come out: see {worker.log}")
            await asyncio.sleep(_LOOK_EVERY)
        if self.doubled:
            raise NotMeasured(f"{self.doubled:,} events came out more than once")


#: A message at a steady rate: its topic, and what it is.
Steady = tuple[str, Packed]


async def send_steadily(
    ground: GrowthGround, groups: Sequence[Sequence[Steady]], per_second: float
) -> list[float]:
    """Send groups of messages at a rate. Returns when each was due, on the clock of `time.monotonic`."""
    due = []
    async with AIOKafkaProducer(bootstrap_servers=ground.bootstrap) as producer:
        async for number, moment in Schedule(time.monotonic() + _LEAD, per_second).moments(len(groups)):
            due.append(moment)
            for topic, (partition, key, value, headers) in groups[number]:
                await producer.send(topic, value, key=key, partition=partition, headers=headers)
        await producer.flush()
    return due


def call(ground: GrowthGround, number: int, key: bytes, fails: int = 0) -> Steady:
    """A message for which the outside is called."""
    return calls_topic(ground.name), event(ground, number, key, fails)
