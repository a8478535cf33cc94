"""Partitions and lanes in one worker: what data is cut into, and what is owned and committed together."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.growth.part import BURST_COLUMNS, GrowthPlan, PartResult, SettingBursts, bursts_by, ratio
from benchmarks.sections import ReportTable

_KEYS = 10_000
_CUTS = ((4, 1), (4, 4), (16, 1), (16, 4), (64, 1), (64, 4), (64, 64))
_QUICK = ((4, 4), (64, 4), (64, 64))
_BASE = (4, 4)


async def measure(plan: GrowthPlan) -> PartResult:
    """4, 16 and 64 partitions as 1, 4 and 64 lanes."""
    cuts = _QUICK if plan.quick else _CUTS
    events = plan.sized(150_000, 40_000)
    bursts: dict[tuple[int, int], SettingBursts] = bursts_by(cuts)
    async with AsyncExitStack() as stack:
        grounds = {
            (partitions, lanes): await stack.enter_async_context(
                plan.ground(f"lanes-{partitions}-{lanes}", partitions=partitions, lanes=lanes)
            )
            for partitions, lanes in cuts
        }
        for _ in range(plan.runs):
            for (partitions, lanes), ground in grounds.items():
                with ground.worker() as worker:
                    await worker.lanes_open(lanes)
                    said = await bursts[partitions, lanes].take(ground, worker, events=events, keys=_KEYS)
                plan.say(f"  {partitions} partitions, {lanes} lanes: {said}")
    base = bursts[_BASE]
    table = ReportTable(
        "Partitions and lanes of one worker",
        ("partitions / lanes", *BURST_COLUMNS, "ratio", "ratio of CPU"),
        [
            [
                f"{partitions} / {lanes}",
                *found.cells(),
                ratio(found.rate, base.rate),
                ratio(base.cpu, found.cpu),
            ]
            for (partitions, lanes), found in bursts.items()
        ],
    )
    return PartResult(
        table,
        {
            "lanes": {
                f"{partitions}x{lanes}": bursts[partitions, lanes].numbers() for partitions, lanes in cuts
            }
        },
    )
