"""From the start of a worker's process to its first message handled and committed."""

from __future__ import annotations

from statistics import median

from benchmarks.growth.part import GrowthPlan, PartResult
from benchmarks.sections import ReportTable

_CUTS = ((8, 4), (64, 4), (64, 64))


async def measure(plan: GrowthPlan) -> PartResult:
    """With nothing to recover, at the default cut and at larger ones; the application's first start apart."""
    rows = []
    for partitions, lanes in _CUTS:
        cut = f"{partitions} / {lanes}"
        async with plan.ground(f"start-{partitions}-{lanes}", partitions=partitions, lanes=lanes) as ground:
            taken = []
            for _ in range(plan.runs + 1):
                await ground.send(ground.events(1000, keys=1000))
                with ground.worker() as worker:
                    taken.append(await ground.first_handled(worker) - worker.started)
            plan.say(f"  {cut}: {', '.join(f'{seconds:.2f}' for seconds in taken)} s")
        again = median(taken[1:])
        rows.append([cut, f"{taken[0]:.2f}", f"{again:.2f}"])
    table = ReportTable(
        "From the start of a worker to its first message, in seconds",
        ("partitions / lanes", "first start ever", "later ones"),
        rows,
    )
    return PartResult(table)
