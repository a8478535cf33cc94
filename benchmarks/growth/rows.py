"""A worker whose table grows, events with keys over all of its rows; and how fast those rows come back."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

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

_LANES = 4


async def measure(plan: GrowthPlan) -> PartResult:
    """10 thousand, 1 million and 5 million rows; the first run starts without a local store."""
    sizes = [10_000, 250_000] if plan.quick else [10_000, 1_000_000, 5_000_000]
    events = plan.sized(150_000, 40_000)
    bursts: dict[int, SettingBursts] = bursts_by(sizes)
    recovered: dict[int, float] = {}
    async with AsyncExitStack() as stack:
        grounds = {
            rows: await stack.enter_async_context(plan.ground(f"rows-{rows}", lanes=_LANES)) for rows in sizes
        }
        for rows, ground in grounds.items():
            await ground.preload_rows(rows)
        for run in range(plan.runs):
            for rows, ground in grounds.items():
                with ground.worker() as worker:
                    opened = await worker.lanes_open(_LANES)
                    if run == 0:
                        recovered[rows] = rows / max(lane["seconds"] for lane in opened)
                    said = await bursts[rows].take(ground, worker, events=events, keys=rows)
                plan.say(f"  {rows:,} rows: {said}")
    return _found(sizes, bursts, recovered)


def _found(sizes: list[int], bursts: dict[int, SettingBursts], recovered: dict[int, float]) -> PartResult:
    first = bursts[sizes[0]]
    numbers: dict[str, Any] = {
        str(rows): {**bursts[rows].numbers(), "recovered_rows_per_second": round(recovered[rows])}
        for rows in sizes
    }
    table = ReportTable(
        "Rows in the table of one worker (4 lanes)",
        ("rows", *BURST_COLUMNS, "ratio", "ratio of CPU", "recovery, rows/s"),
        [
            [
                short(rows),
                *bursts[rows].cells(),
                ratio(bursts[rows].rate, first.rate),
                ratio(first.cpu, bursts[rows].cpu),
                f"{recovered[rows]:,.0f}",
            ]
            for rows in sizes
        ],
    )
    return PartResult(table, {"rows": numbers})
