"""One worker and two, which share the lanes."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.growth.part import BURST_COLUMNS, GrowthPlan, PartResult, SettingBursts, bursts_by, ratio
from benchmarks.sections import ReportTable

_KEYS = 10_000
_LANES = 8
_OPEN_WITHIN = 60.0


async def measure(plan: GrowthPlan) -> PartResult:
    """The same events for both."""
    events = plan.sized(200_000, 50_000)
    bursts: dict[int, SettingBursts] = bursts_by((1, 2))
    async with plan.ground("workers", partitions=16, lanes=_LANES) as ground:
        for _ in range(plan.runs):
            for number, found in bursts.items():
                with ExitStack() as stack:
                    workers = [stack.enter_context(ground.worker()) for _ in range(number)]
                    for worker in workers:
                        await worker.owns(_LANES // number, within=_OPEN_WITHIN)
                    said = await found.take(ground, *workers, events=events, keys=_KEYS)
                plan.say(f"  {number} workers: {said}")
    table = ReportTable(
        "Workers that share 8 lanes, on this machine's cores",
        ("workers", *BURST_COLUMNS, "ratio"),
        [
            [str(number), *found.cells(), ratio(found.rate, bursts[1].rate)]
            for number, found in bursts.items()
        ],
    )
    notes = ["Workers, the broker and the load share the machine's cores: two workers have no core each."]
    return PartResult(table, {"workers": {str(n): found.numbers() for n, found in bursts.items()}}, notes)
