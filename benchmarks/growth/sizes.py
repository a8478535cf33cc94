"""Messages of 200 B to 1 MB, each passed on whole."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.growth.part import BURST_COLUMNS, GrowthPlan, PartResult, SettingBursts, bursts_by
from benchmarks.sections import ReportTable

_KEYS = 10_000
_LANES = 4
_SIZES = (200, 1000, 10_000, 100_000, 1_000_000)
_FRAME = 40  # of JSON around the padding
_MOST_EVENTS = 100_000


async def measure(plan: GrowthPlan) -> PartResult:
    """As many messages of each size as make about the same number of bytes."""
    total = plan.sized(120_000_000, 30_000_000)
    bursts: dict[int, SettingBursts] = bursts_by(_SIZES)
    async with AsyncExitStack() as stack:
        grounds = {
            size: await stack.enter_async_context(
                plan.ground(f"sizes-{size}", lanes=_LANES, MAX_MESSAGE_BYTES="1100000")
            )
            for size in _SIZES
        }
        for _ in range(plan.runs):
            for size, ground in grounds.items():
                events = min(_MOST_EVENTS, total // size)
                with ground.worker() as worker:
                    await worker.lanes_open(_LANES)
                    said = await bursts[size].take(
                        ground, worker, events=events, keys=_KEYS, size=size - _FRAME
                    )
                plan.say(f"  {size:,} bytes: {said}")
    table = ReportTable(
        "Size of messages, one worker (4 lanes)",
        ("bytes", *BURST_COLUMNS, "MB/s in, and as much out"),
        [[f"{size:,}", *found.cells(), f"{found.rate * size / 1e6:,.1f}"] for size, found in bursts.items()],
    )
    numbers = {
        str(size): {**found.numbers(), "mb_per_second": round(found.rate * size / 1e6, 1)}
        for size, found in bursts.items()
    }
    return PartResult(table, {"sizes": numbers})
