"""A minute of events of which some fail at first, beside one in which none does."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from benchmarks.failures.ground import LANES, Counted, events, ground_of
from benchmarks.growth.ground import GrowthGround
from benchmarks.growth.part import GrowthPlan, PartResult
from benchmarks.sections import NotMeasured, ReportTable
from benchmarks.worker_process import BenchmarkWorker

_KEYS = 250_000
_EVERY = 20
#: By the title: how often the handler fails on every 20th event before it succeeds.
_KINDS = {
    "none fails": 0,
    "5 % fail once: tried again at once": 1,
    "5 % fail three times: they wait 10 s, later ones of their keys behind them": 3,
}
_WARM = 3.0
_LOOK_EVERY = 0.2
_NOTE = (
    f"Sustained: events lie in the topic before the worker starts, over {_KEYS:,} keys; the rate is that of"
    " committed positions over the minute after the first three seconds, or until all are handled if that"
    " is sooner. Then every event, those that failed at first too, is checked to have come out exactly once."
)


async def measure(plan: GrowthPlan) -> PartResult:
    """Each kind in turn, as often as there are runs."""
    seconds = 60.0 if not plan.quick else 5.0
    number = plan.sized(1_500_000, 200_000)
    rates: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for run in range(plan.runs):
        for kind, fails in _KINDS.items():
            async with ground_of(plan, f"sustained-{fails}-{run}") as ground:
                await ground.send(events(ground, number, keys=_KEYS, fails=fails, every=_EVERY))
                with ground.worker() as worker:
                    await worker.lanes_open(LANES)
                    rates[kind].append(await _rate(ground, worker, seconds))
                    async with Counted(ground) as counted:
                        await counted.each_once(range(number), worker)
            plan.say(f"  {kind}: {rates[kind][-1]:,.0f} events/s")
    plain = rates[next(iter(_KINDS))]
    ratios = {
        kind: median(one / other for one, other in zip(found, plain, strict=True))
        for kind, found in rates.items()
    }
    table = ReportTable(
        "A sustained minute, one worker (4 lanes)"
        if not plan.quick
        else "Some seconds, one worker (4 lanes)",
        ("", "events/s", "ratio"),
        [[kind, f"{median(found):,.0f}", f"{ratios[kind]:.2f}"] for kind, found in rates.items()],
    )
    return PartResult(table, [_NOTE])


async def _rate(ground: GrowthGround, worker: BenchmarkWorker, seconds: float) -> float:
    """Events of which the handling was committed in a second. Raises NotMeasured when there were too few."""
    total = await _made(ground)
    await ground.until_handled(1, worker)
    await asyncio.sleep(_WARM)
    first, began = await ground.handled(), time.perf_counter()
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        handled, at = await ground.handled(), time.perf_counter()
        worker.must_run("the time is over")
        if at - began >= seconds or (handled >= total and at - began >= seconds / 2):
            return (handled - first) / (at - began)
        if handled >= total:
            raise NotMeasured(f"{total:,} events were handled in {at - began:.0f} s: too few for a minute")


async def _made(ground: GrowthGround) -> int:
    return sum((await ground.ends(ground.sources)).values())
