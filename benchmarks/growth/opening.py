"""How long a worker takes to open: without its disk, and from the start of its process."""

from __future__ import annotations

from statistics import median

from benchmarks.growth.part import GrowthPlan, PartResult, short
from benchmarks.sections import ReportTable

_LANES = 4
_NOTE = (
    "Recovery: lanes recover side by side; the rate is all rows by the time that the last lane needed to"
    " open. The first message is that of the lane that opens first, timed from the start of the process."
)


async def after_a_lost_disk(plan: GrowthPlan) -> PartResult:
    """Each run begins on an empty directory, with messages waiting."""
    rows = plan.sized(1_000_000, 250_000)
    rates, firsts, peaks = [], [], []
    async with plan.ground("recovery", lanes=_LANES) as ground:
        await ground.preload_rows(rows)
        for run in range(plan.runs):
            await ground.send(ground.events(400, keys=rows))
            with ground.worker(machine=f"machine-{run}") as worker:
                handled = await ground.first_handled(worker)
                opened = await worker.lanes_open(_LANES)
                rates.append(rows / max(lane["seconds"] for lane in opened))
                firsts.append(handled - worker.started)
                peaks.append(worker.peak)
            plan.say(f"  {rates[-1]:,.0f} rows/s, first message after {firsts[-1]:.2f} s")
    rate, first, peak = median(rates), median(firsts), max(peaks) / 1e6
    table = ReportTable(
        "Recovery of a worker without its disk (4 lanes)",
        ("rows", "rows/s", "first message handled, s", "peak MB"),
        [[short(rows), f"{rate:,.0f}", f"{first:.2f}", f"{peak:,.0f}"]],
    )
    return PartResult(table, [_NOTE])


_CUTS = ((4, 2), (64, 4), (64, 64))


async def of_a_worker(plan: GrowthPlan) -> PartResult:
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
