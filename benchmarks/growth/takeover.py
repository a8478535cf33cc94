"""A worker is killed; when do its lanes commit again on the other one, with a warm standby and without."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from benchmarks.growth.ground import GrowthGround
from benchmarks.growth.part import GrowthPlan, PartResult, short
from benchmarks.sections import NotMeasured, ReportTable
from benchmarks.worker_process import BenchmarkWorker
from streams.ports import TP

_LANES = 4
_SESSION = 6.0
_EACH_SECOND = 100
_OPEN_WITHIN = 120.0
_TAKEN_OVER_WITHIN = 90.0
_LOOK_EVERY = 0.02


async def measure(plan: GrowthPlan) -> PartResult:
    """The rows of the killed worker's lanes are half of all."""
    rows = plan.sized(2_000_000, 250_000)
    found = {standbys: await _takeover(plan, standbys, rows) for standbys in (1, 0)}
    table = ReportTable(
        f"Takeover of a killed worker's lanes, {short(rows // 2)} rows, session timeout {_SESSION:g} s",
        ("standby", "kill to first commit, s", "of it after the group has decided, s", "peak MB"),
        [
            ["warm" if standbys else "none", f"{total:.2f}", f"{after:.2f}", f"{peak / 1e6:,.0f}"]
            for standbys, (total, after, peak) in found.items()
        ],
    )
    notes = ["Takeover: the first commit of every lane of the killed worker, at 100 events/s; one run each."]
    return PartResult(table, notes)


async def _takeover(plan: GrowthPlan, standbys: int, rows: int) -> tuple[float, float, int]:
    choices = {"STANDBYS": str(standbys), "SESSION_TIMEOUT": str(_SESSION)}
    async with plan.ground(f"takeover-{standbys}", lanes=_LANES, **choices) as ground:
        await ground.preload_rows(rows)
        with ground.worker() as survivor, ground.worker() as victim:
            for worker in (survivor, victim):
                await worker.owns(_LANES // 2, within=_OPEN_WITHIN)
                await worker.idle(within=_OPEN_WITHIN)
            load = asyncio.create_task(_load(ground, rows))
            try:
                lost = [tp for tp in ground.sources if ground.layout.lane_of(tp.partition) in victim.lanes()]
                await _committing(ground, lost, survivor)
                killed = victim.kill()
                committed = await _committing(ground, lost, survivor)
            finally:
                load.cancel()
                with suppress(asyncio.CancelledError):
                    await load
            decided = survivor.last_assigned()
            if decided < killed:
                raise NotMeasured(f"the lanes came back without a new assignment: see {survivor.log}")
            plan.say(f"  {standbys} standbys: {committed - killed:.2f} s")
            return committed - killed, committed - decided, survivor.peak


async def _load(ground: GrowthGround, keys: int) -> None:
    while True:
        await ground.send(ground.events(_EACH_SECOND // 5, keys=keys))
        await asyncio.sleep(0.2)


async def _committing(ground: GrowthGround, tps: list[TP], worker: BenchmarkWorker) -> float:
    """Wait until every one of these partitions has moved on; returns when."""
    before = await ground.positions(tps)
    deadline = time.monotonic() + _TAKEN_OVER_WITHIN
    while True:
        now = await ground.positions(tps)
        if all(now.get(tp, 0) > before.get(tp, 0) for tp in tps):
            return time.time()
        if time.monotonic() > deadline:
            raise NotMeasured(f"no commit in {tps} within {_TAKEN_OVER_WITHIN:g} s: see {worker.log}")
        await asyncio.sleep(_LOOK_EVERY)
