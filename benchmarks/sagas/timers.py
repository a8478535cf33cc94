"""What a timer costs, and how late it rings, while many others wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from statistics import median

import msgspec

from benchmarks.failures.ground import send_steadily
from benchmarks.growth.ground import GrowthGround, coprime
from benchmarks.growth.packing import Packed, fill
from benchmarks.growth.part import GrowthPlan, PartResult, short
from benchmarks.latency import Follower, Latency, latency_of
from benchmarks.sagas.timer_workload import NAME, TIMERS, rang_topic
from benchmarks.sections import NotMeasured, ReportTable
from benchmarks.worker_process import BenchmarkWorker
from streams.engine.staging.timers import set_timer, timer_name
from streams.model.envelope import ID, SOURCE, TYPE
from streams.model.layout import LANE
from streams.ports import Outgoing, Record

_LANES = 4
_CLIENT = b"timers"
_AT_ONCE = 100_000
_A_DAY = 86400.0
#: From now to the moment at which timers of a burst all ring, in seconds; they are set before.
_SOON = 8.0
#: Timers that ring one by one: how many a second, and how long before they are due they are set, in seconds.
_PER_SECOND = 100
_AHEAD = 1.0
_RUNG_WITHIN = 120.0
_LOOK_EVERY = 0.02
_COSTS = ("a message alone", "one that sets a timer", "one that cancels it", "a timer that rings")
_NOTE = (
    "Timers: one worker of 4 lanes; those that wait are of as many keys and due in a day. Costs are the"
    " seconds of a burst by its messages, with their handling and their share of a transaction; that of"
    " ringing, from the moment at which all timers of a burst are due to when a reader of committed records"
    " has the last of their messages. Late: timers that are due one by one,"
    f" {_PER_SECOND} a second, from when each is due to when such a reader has its message; a lane looks for"
    " due ones ten times a second."
)


async def measure(plan: GrowthPlan) -> PartResult:
    """1 thousand, 100 thousand and 1 million others; each run a burst of each kind."""
    sizes = (1000, 100_000, 1_000_000) if not plan.quick else (1000, 20_000)
    burst, steady = plan.sized(50_000, 10_000), _PER_SECOND * plan.sized(15, 4)
    trials: dict[int, TimerTrial] = {}
    async with AsyncExitStack() as stack:
        for size in sizes:
            ground = GrowthGround(
                plan.bootstrap, plan.var, f"sagas-timers-{size}", lanes=_LANES, workload=TIMERS
            )
            trials[size] = TimerTrial(await stack.enter_async_context(ground), size)
            await trials[size].preload()
        for _ in range(plan.runs):
            for size, trial in trials.items():
                with trial.ground.worker() as worker:
                    await worker.lanes_open(_LANES)
                    progress = await trial.run(worker, burst, steady)
                plan.say(f"  {size:,} timers wait: {progress}")
    return _found(trials)


def _found(trials: dict[int, TimerTrial]) -> PartResult:
    table = ReportTable(
        "A timer while others wait, in microseconds, one worker (4 lanes)",
        ("waiting", *_COSTS, "late p50, ms", "p99", "max", "peak MB"),
        [
            [
                short(size),
                *(f"{trial.micros(cost):,.1f}" for cost in _COSTS),
                *(f"{value * 1000:,.0f}" for value in (trial.late.p50, trial.late.p99, trial.late.most)),
                f"{trial.peak / 1e6:,.0f}",
            ]
            for size, trial in trials.items()
        ],
    )
    return PartResult(table, [_NOTE])


class TimerTrial:
    """Bursts of timers while so many others wait.

    Attributes:
        late: of the timers that rang one by one, in the last run.
        peak: the most bytes that a worker had.
    """

    late: Latency

    def __init__(self, ground: GrowthGround, waiting: int) -> None:
        self.ground = ground
        self.peak = 0
        self._waiting = waiting
        self._keys = 0
        self._seconds: dict[str, list[float]] = {cost: [] for cost in _COSTS}

    def micros(self, cost: str) -> float:
        """The median, in microseconds."""
        return median(self._seconds[cost]) * 1e6

    async def preload(self) -> None:
        """The timers that wait, in the changelog that lanes recover from."""
        topic = self.ground.layout.changelog(LANE)
        records = waiting_timers(self.ground, self._waiting, time.time() + _A_DAY)
        await fill(self.ground.bootstrap, topic, records, at_once=_AT_ONCE)

    async def run(self, worker: BenchmarkWorker, burst: int, steady: int) -> str:
        """A burst of each kind, then timers one by one; returns what to say of it."""
        await self._burst(worker, self._new(burst // 10), "neither")
        costs = []
        for cost, ask, keys in zip(
            _COSTS, ("neither", "set", "cancel"), (self._new(burst), *[self._new(burst)] * 2), strict=False
        ):
            costs.append((cost, await self._burst(worker, keys, ask, time.time() + _A_DAY)))
        async with Rung(self.ground, worker) as rung:
            costs.append((_COSTS[-1], await self._ring(worker, rung, self._new(burst))))
            self.late = await self._ring_steadily(rung, self._new(steady))
        for cost, seconds in costs:
            self._seconds[cost].append(seconds)
        self.peak = max(self.peak, worker.peak)
        progress = ", ".join(f"{cost} {seconds * 1e6:.1f} us" for cost, seconds in costs)
        return f"{progress}, late by {self.late.p99 * 1000:.0f} ms (p99)"

    def _new(self, number: int) -> range:
        self._keys += number
        return range(self._keys - number, self._keys)

    async def _burst(self, worker: BenchmarkWorker, keys: range, ask: str, due: float = 0.0) -> float:
        rate = await self.ground.burst(timer_messages(self.ground, keys, ask, due), worker)
        return 1 / rate.per_second

    async def _ring(self, worker: BenchmarkWorker, rung: Rung, keys: range) -> float:
        due = time.time() + _SOON
        await self._burst(worker, keys, "set", due)
        if time.time() > due:
            raise NotMeasured(f"{len(keys):,} timers were not set within {_SOON:g} s")
        return (await rung.each_once(keys) - due) / len(keys)

    async def _ring_steadily(self, rung: Rung, keys: range) -> Latency:
        """Messages that set timers, one by one, for a moment soon after each is sent."""
        began = time.time() + _AHEAD
        dues = {key: began + _AHEAD + place / _PER_SECOND for place, key in enumerate(keys)}
        messages = [
            [(self.ground.topic, packed)]
            for key, due in dues.items()
            for packed in timer_messages(self.ground, [key], "set", due)
        ]
        await send_steadily(self.ground, messages, _PER_SECOND)
        await rung.each_once(keys)
        return latency_of(
            {name_of(key): due for key, due in dues.items()},
            {name_of(key): rung.seen[name_of(key)] for key in keys},
        )


class Rung(Follower):
    """Sees timers' messages; use it `async with`.

    Attributes:
        seen: key -> when its timer's message was read, epoch seconds.
    """

    def __init__(self, ground: GrowthGround, worker: BenchmarkWorker) -> None:
        self.seen: dict[str, float] = {}
        self._doubled = 0
        self._worker = worker
        super().__init__(ground.bootstrap, [rang_topic(ground.name)])

    def take(self, record: Record, now: float) -> None:
        """A timer has rung."""
        del now  # due times are on the other clock
        key = (record.key or b"").decode()
        self._doubled += key in self.seen
        self.seen.setdefault(key, time.time())

    async def each_once(self, keys: range) -> float:
        """Wait until each of these has rung; returns when the last one was seen, epoch seconds. Raises
        NotMeasured when one does not, or twice.
        """
        names = [name_of(key) for key in keys]
        deadline = time.monotonic() + _RUNG_WITHIN
        while not all(name in self.seen for name in names):
            self.must_read()
            self._worker.must_run("all timers have rung")
            if time.monotonic() > deadline:
                left = sum(name not in self.seen for name in names)
                raise NotMeasured(f"{left:,} of {len(names):,} timers did not ring: see {self._worker.log}")
            await asyncio.sleep(_LOOK_EVERY)
        if self._doubled:
            raise NotMeasured(f"{self._doubled:,} timers rang more than once")
        return max(self.seen[name] for name in names)


def name_of(number: int) -> str:
    """The key of a number."""
    return f"k{number}"


def timer_messages(ground: GrowthGround, keys: Iterable[int], ask: str, due: float) -> Iterator[Packed]:
    """Messages that ask for something about the timers of these keys."""
    for number in keys:
        key = name_of(number).encode()
        value = msgspec.json.encode({"k": name_of(number), "ask": ask, "due": due})
        own_id = b"%b-%b" % (key, ask.encode())
        yield ground.partition_of(key), key, value, [(ID, own_id), (SOURCE, _CLIENT)]


def waiting_timers(ground: GrowthGround, number: int, due: float) -> Iterator[Packed]:
    """Timers as a lane writes them, one of each key `w<n>`, due in a second's time and no order."""
    (handler,) = ground.app.routes[ground.topic].handlers
    topic = rang_topic(ground.name)
    stride = coprime(number)
    for i in range(number):
        key = b"w%d" % (i * stride % number)
        at = due + i / number
        value = b'{"k":"%s","due":%f}' % (key, at)
        message = Outgoing(key, value, [(ID, key), (TYPE, topic.encode()), (SOURCE, _CLIENT)])
        change = set_timer(timer_name(handler.name_bytes, key, NAME), at, topic, message)
        yield ground.partition_of(key), change.key, change.value or b"", []
