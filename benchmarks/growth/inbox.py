"""A worker that remembers many ids."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.growth.part import (
    BURST_COLUMNS,
    GrowthPlan,
    PartResult,
    SettingBursts,
    bursts_by,
    ratio,
    short,
)
from benchmarks.sections import ReportTable

_KEYS = 10_000
_LANES = 4


async def measure(plan: GrowthPlan) -> PartResult:
    """No ids against 10 million; the first run starts without a local store."""
    sizes = (0, plan.sized(10_000_000, 500_000))
    events = plan.sized(150_000, 40_000)
    bursts: dict[int, SettingBursts] = bursts_by(sizes)
    async with AsyncExitStack() as stack:
        grounds = {
            ids: await stack.enter_async_context(plan.ground(f"inbox-{ids}", lanes=_LANES)) for ids in sizes
        }
        for ids, ground in grounds.items():
            await ground.preload_ids(ids)
        for run in range(plan.runs):
            for ids, ground in grounds.items():
                with ground.worker() as worker:
                    opened = await worker.lanes_open(_LANES)
                    if run == 0 and ids:
                        recovered = ids / max(lane["seconds"] for lane in opened)
                    said = await bursts[ids].take(ground, worker, events=events, keys=_KEYS)
                plan.say(f"  {ids:,} ids: {said}")
    table = ReportTable(
        "Ids in the inbox of one worker (4 lanes)",
        ("ids", *BURST_COLUMNS, "ratio", "ratio of CPU", "recovery, ids/s"),
        [
            [
                short(ids),
                *found.cells(),
                ratio(found.rate, bursts[0].rate),
                ratio(bursts[0].cpu, found.cpu),
                f"{recovered:,.0f}" if ids else "-",
            ]
            for ids, found in bursts.items()
        ],
    )
    numbers = {str(ids): found.numbers() for ids, found in bursts.items()}
    return PartResult(table, {"inbox": {**numbers, "recovered_ids_per_second": round(recovered)}})
