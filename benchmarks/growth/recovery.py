"""A worker that has lost its disk: how fast a million rows come back, and when it handles a message again."""

from __future__ import annotations

from statistics import median

from benchmarks.growth.part import GrowthPlan, PartResult, short
from benchmarks.sections import ReportTable

_LANES = 4
_NOTE = (
    "Recovery: lanes recover side by side; the rate is all rows by the time that the last lane needed to"
    " open. The first message is that of the lane that opens first, timed from the start of the process."
)


async def measure(plan: GrowthPlan) -> PartResult:
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
