"""What others notice of a key that fails again and again, and of a handler whose outside is down."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.failures.ground import LANES, Counted, Steady, call, event, ground_of, send_steadily
from benchmarks.failures.workload import ALWAYS
from benchmarks.growth.ground import GrowthGround
from benchmarks.growth.part import GrowthPlan, PartResult
from benchmarks.latency import Latency, latency_of
from benchmarks.sections import NotMeasured, ReportTable
from benchmarks.worker_process import BenchmarkWorker

_PER_SECOND = 500
_KEYS = 1000
#: Every so many events one more is of the poisoned key.
_EVERY = 100
#: Seconds of failing calls until the breaker has opened in every lane.
_TRIES = 20
_NOTE = (
    f"Others: {_PER_SECOND} events/s over {_KEYS:,} keys, timed from when each was due to when a reader of"
    " committed records has what came of it. The poisoned key has a hundredth as many, and its first one"
    " fails whenever it is tried. With the breaker open, as many messages again go to another handler whose"
    " outside does not answer; the time begins when its breaker has opened in every lane."
)


async def measure(plan: GrowthPlan) -> PartResult:
    """Quiet, with a poisoned key, with another handler that works, and with its breaker open."""
    seconds = 30 if not plan.quick else 5
    number = _PER_SECOND * seconds
    found: dict[str, Latency] = {}
    async with ground_of(plan, "others") as ground:
        with ground.worker() as worker:
            await worker.lanes_open(LANES)
            async with Counted(ground) as counted:
                steady = Steadily(ground, worker, counted)
                await steady.latency(_PER_SECOND * 3)  # to warm up
                found["none fails"] = await steady.latency(number)
                found["a key is poisoned"] = await steady.latency(number, poisoned=True)
                await steady.latency(_PER_SECOND * 3, calls=True)
                found["beside another handler"] = await steady.latency(number, calls=True)
                await steady.until_open()
                found["beside another handler, its breaker open"] = await steady.latency(
                    number, calls=True, fails=ALWAYS
                )
        for name, latency in found.items():
            plan.say(f"  {name}: p99 {latency.p99 * 1000:,.0f} ms")
    ms = {name: {q: s * 1000 for q, s in latency.seconds().items()} for name, latency in found.items()}
    table = ReportTable(
        f"Other keys and other handlers at {_PER_SECOND} events/s, in ms",
        ("", *next(iter(ms.values()))),
        [[name, *(f"{value:,.0f}" for value in quantiles.values())] for name, quantiles in ms.items()],
    )
    return PartResult(table, [_NOTE])


class Steadily:
    """Sends at a steady rate, and waits for the events that count."""

    def __init__(self, ground: GrowthGround, worker: BenchmarkWorker, counted: Counted) -> None:
        self._ground = ground
        self._worker = worker
        self._counted = counted
        self._numbers = 0

    async def latency(
        self, number: int, *, poisoned: bool = False, calls: bool = False, fails: int = 0
    ) -> Latency:
        """That of so many events, beside a poisoned key, or calls that fail so often."""
        numbers = [self._number() for _ in range(number)]
        groups: list[Sequence[Steady]] = []
        for place, own in enumerate(numbers):
            key = b"k%d" % (own % _KEYS)
            group = [(self._ground.topic, event(self._ground, own, key))]
            if poisoned and place % _EVERY == 0:
                bad = event(self._ground, self._number(), b"poisoned", ALWAYS if place == 0 else 0)
                group.append((self._ground.topic, bad))
            if calls:
                own_call = self._number()  # each of a key of its own: none waits behind another
                group.append(call(self._ground, own_call, b"c%d" % own_call, fails))
            groups.append(group)
        moments = await send_steadily(self._ground, groups, _PER_SECOND)
        await self._counted.each_once(numbers, self._worker)
        due = {str(own): moment for own, moment in zip(numbers, moments, strict=True)}
        return latency_of(due, {str(own): self._counted.seen[own] for own in numbers})

    async def until_open(self) -> None:
        """Have the other handler's breaker open in every lane."""

        def opened() -> int:
            events = self._worker.events("breaker_changed")
            return sum(event["before"] == "closed" for event in events)

        for _ in range(_TRIES):
            if opened() == LANES:
                return
            await self.latency(_PER_SECOND, calls=True, fails=ALWAYS)
        raise NotMeasured(f"the breaker has opened in {opened()} of {LANES} lanes: see {self._worker.log}")

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers
