"""Bursts of events while one thing grows: rows, ids of the inbox, partitions and lanes, workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass

from benchmarks.growth.ground import GrowthGround
from benchmarks.growth.part import BURST_COLUMNS, GrowthPlan, PartResult, SettingBursts, ratio, short
from benchmarks.sections import ReportTable

_OPEN_WITHIN = 600.0


@dataclass(frozen=True, slots=True)
class BurstSetting:
    """What is measured in a line of a table.

    Attributes:
        title: its first cell.
        keys: of the events.
        rows: of the table, and `ids` of the inbox, that are there before.
    """

    title: str
    partitions: int = 4
    lanes: int = 4
    workers: int = 1
    keys: int = 10_000
    rows: int = 0
    ids: int = 0


async def rows(plan: GrowthPlan) -> PartResult:
    """10 thousand, 1 million and 5 million rows; the first run starts without a local store."""
    sizes = [10_000, 250_000] if plan.quick else [10_000, 1_000_000, 5_000_000]
    settings = [BurstSetting(short(size), keys=size, rows=size) for size in sizes]
    found = await _measured(plan, "rows", settings, plan.sized(150_000, 40_000))
    return _recovered("Rows in the table of one worker (4 lanes)", "rows", found)


async def ids(plan: GrowthPlan) -> PartResult:
    """No ids against 10 million; the first run starts without a local store."""
    most = plan.sized(10_000_000, 500_000)
    filled = BurstSetting(short(most), ids=most)
    found = await _measured(plan, "inbox", [BurstSetting("0"), filled], plan.sized(150_000, 40_000))
    return _recovered("Ids in the inbox of one worker (4 lanes)", "ids", found)


async def lanes(plan: GrowthPlan) -> PartResult:
    """Partitions are what data is cut into, lanes what is owned and committed together."""
    base = (4, 4)
    quick = (base, (64, 4), (64, 64))
    cuts = quick if plan.quick else ((4, 1), base, (16, 1), (16, 4), (64, 1), (64, 4), (64, 64))
    settings = [BurstSetting(f"{each} / {lanes}", each, lanes) for each, lanes in cuts]
    found = await _measured(plan, "lanes", settings, plan.sized(150_000, 40_000))
    columns = ("partitions / lanes", *BURST_COLUMNS, "ratio", "ratio of CPU")
    cells = [_cells(title, each, found["4 / 4"]) for title, each in found.items()]
    return PartResult(ReportTable("Partitions and lanes of one worker", columns, cells))


async def workers(plan: GrowthPlan) -> PartResult:
    """One worker, and two that share its lanes."""
    settings = [BurstSetting(str(number), partitions=16, lanes=8, workers=number) for number in (1, 2)]
    found = await _measured(plan, "workers", settings, plan.sized(200_000, 50_000))
    cells = [_cells(title, each, found["1"])[:-1] for title, each in found.items()]
    title = "Workers that share 8 lanes, on this machine's cores"
    notes = ["Workers, the broker and the load share the machine's cores: two workers have no core each."]
    return PartResult(ReportTable(title, ("workers", *BURST_COLUMNS, "ratio"), cells), notes)


async def _measured(
    plan: GrowthPlan, part: str, settings: Sequence[BurstSetting], events: int
) -> dict[str, SettingBursts]:
    """Bursts of each setting in turns, by its title; each setting has an application of its own."""
    found = {each.title: SettingBursts() for each in settings}
    async with AsyncExitStack() as stack:
        grounds = []
        for number, each in enumerate(settings):
            ground = plan.ground(f"{part}-{number}", partitions=each.partitions, lanes=each.lanes)
            grounds.append(await stack.enter_async_context(ground))
            if each.rows:
                await ground.preload_rows(each.rows)
            if each.ids:
                await ground.preload_ids(each.ids)
        for _ in range(plan.runs):
            for each, ground in zip(settings, grounds, strict=True):
                progress = await _burst(each, ground, found[each.title], events)
                plan.say(f"  {each.title}: {progress}")
    return found


async def _burst(setting: BurstSetting, ground: GrowthGround, bursts: SettingBursts, events: int) -> str:
    with ExitStack() as stack:
        workers = [stack.enter_context(ground.worker()) for _ in range(setting.workers)]
        for worker in workers:
            await worker.owns(setting.lanes // setting.workers, within=_OPEN_WITHIN)
        if (loaded := setting.rows + setting.ids) and not bursts.recovered:
            bursts.recovered = loaded / max(lane["seconds"] for lane in workers[0].events("lane_opened"))
        return await bursts.take(ground, *workers, events=events, keys=setting.keys)


def _cells(title: str, each: SettingBursts, base: SettingBursts) -> list[str]:
    return [title, *each.cells(), ratio(each.rate, base.rate), ratio(base.cpu, each.cpu)]


def _recovered(title: str, what: str, found: Mapping[str, SettingBursts]) -> PartResult:
    """Settings beside the first of them, and how fast their rows or ids came back."""
    first = next(iter(found.values()))
    cells = [
        [*_cells(name, each, first), f"{each.recovered:,.0f}" if each.recovered else "-"]
        for name, each in found.items()
    ]
    columns = (what, *BURST_COLUMNS, "ratio", "ratio of CPU", f"recovery, {what}/s")
    return PartResult(ReportTable(title, columns, cells))
