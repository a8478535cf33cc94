"""A million dead letters: looked through, grouped, and a tenth of them replayed by a filter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.failures.ground import LANES, Counted, event, ground_of
from benchmarks.failures.workload import ALWAYS, Outside
from benchmarks.growth.ground import GrowthGround
from benchmarks.growth.packing import Packed, fill
from benchmarks.growth.part import GrowthPlan, PartResult, short
from benchmarks.sections import NotMeasured, ReportTable
from benchmarks.worker_process import BenchmarkWorker
from streams.cli.workers import WorkerAddress
from streams.engine.waiting.dead_letters.row import encode_letter, key_of, new_letter
from streams.errors import TransientError
from streams.model.layout import DEAD_LETTERS
from streams.testing.log import FakeRecord

_LETTERS = "/api/dead-letters"
_AT_ONCE = 20_000
#: The filter matches every so many letters.
_EVERY = 10
_PAGE = 500
#: Operations a second of the replay: more than a lane can do, so that its own speed is measured.
_RATE = 20_000.0
_MATCHING = {"error_type": TransientError.__name__}
_OPEN_WITHIN = 600.0
_REPLAYED_WITHIN = 1800.0
_LOOK_EVERY = 0.5
_NOTE = (
    "Dead letters: those of events that were given up after six attempts, each with a stack trace; the worker"
    " starts without a local store. A list is read to its end in pages of 500 over HTTP. The replay is one"
    " command with a filter that matches every tenth letter; it ends when each of these events has come out,"
    " exactly once, and no other has, and the other letters are left."
)


async def measure(plan: GrowthPlan) -> PartResult:
    """Once."""
    number = plan.sized(1_000_000, 20_000)
    async with ground_of(plan, "letters") as ground:
        written = await fill(
            ground.bootstrap,
            ground.layout.changelog(DEAD_LETTERS),
            _letters(ground, number),
            at_once=_AT_ONCE,
        )
        plan.say(f"  {written:,} dead letters are written")
        with ground.worker(web=True) as process:
            opened = await process.lanes_open(LANES, within=_OPEN_WITHIN)
            recovery = max(lane["seconds"] for lane in opened)
            worker = WorkerAddress(await _address(process))
            listed = await _timed(_count, worker, _LETTERS, {"limit": str(_PAGE)}, number)
            grouped = await _timed(_count, worker, f"{_LETTERS}/groups", {}, number)
            plan.say(f"  listed in {listed:.1f} s, grouped in {grouped:.1f} s, {process.peak / 1e6:,.0f} MB")
            replayed = await _replayed(ground, process, worker, number)
            peak = process.peak
            plan.say(f"  replayed in {replayed:.0f} s, {process.peak / 1e6:,.0f} MB")
    return _found(
        {
            "recovered": (recovery, number),
            "listed": (listed, number),
            "grouped": (grouped, number),
            "replayed by a filter": (replayed, number // _EVERY),
        },
        number,
        peak,
    )


def _found(found: Mapping[str, tuple[float, int]], number: int, peak: int) -> PartResult:
    """By what was done, its seconds and with how many letters; and the most bytes that the worker had."""
    table = ReportTable(
        f"{short(number)} dead letters, one worker (4 lanes)",
        ("", "letters", "seconds", "letters/s"),
        [[name, f"{many:,}", f"{took:,.1f}", f"{many / took:,.0f}"] for name, (took, many) in found.items()],
    )
    memory = f"The worker had {peak / 1e6:,.0f} MB at most."
    return PartResult(table, [_NOTE, memory])


def _letters(ground: GrowthGround, number: int) -> Iterator[Packed]:
    """Rows as a lane writes them, one for each key."""
    (handler, *_) = ground.app.routes[ground.topic].handlers
    limit, now_ms = ground.app.lane_options.max_message_bytes, int(time.time() * 1000)
    errors = [_raised(), *[ValueError("not to be tried again")] * (_EVERY - 1)]
    offsets = dict.fromkeys(range(ground.layout.partitions), 0)
    for i in range(number):
        partition, key, value, headers = event(ground, i, b"k%d" % i)
        record = FakeRecord(ground.topic, partition, offsets[partition], now_ms, key, value, headers)
        offsets[partition] += 1
        letter = new_letter(
            record, errors[i % _EVERY], handler=handler.name, attempts=6, now_ms=now_ms, limit=limit
        )
        yield partition, key_of(letter), encode_letter(letter, limit), []


def _raised() -> TransientError:
    """An error as handlers raise it, with its traceback."""
    try:
        Outside().call(0, ALWAYS)
    except TransientError as error:
        return error
    raise AssertionError("the outside answers")


async def _address(process: BenchmarkWorker) -> str:
    await process.until(lambda: bool(process.events("worker_started")), "it has started", within=60.0)
    return str(process.events("worker_started")[-1]["web"])


async def _timed(what: Any, worker: WorkerAddress, path: str, query: Mapping[str, str], number: int) -> float:
    """Seconds until all pages are read. Raises NotMeasured when they are not about so many letters."""
    began = time.perf_counter()
    found = await asyncio.to_thread(what, worker, path, query)
    if found != number:
        raise NotMeasured(f"{path} tells of {found:,} letters in place of {number:,}")
    return time.perf_counter() - began


def _count(worker: WorkerAddress, path: str, query: Mapping[str, str]) -> int:
    letters = 0
    for page in worker.pages(path, query):
        letters += len(page["letters"]) if "letters" in page else sum(g["count"] for g in page["groups"])
    return letters


async def _replayed(
    ground: GrowthGround, process: BenchmarkWorker, worker: WorkerAddress, number: int
) -> float:
    """Seconds from the command until every event that the filter matches has come out, and no other."""
    matching = range(0, number, _EVERY)
    request = {
        "operation": "replay",
        "who": "benchmarks",
        "why": "the outside answers",
        "matching": _MATCHING,
        "rate": _RATE,
    }
    began = time.perf_counter()
    job = (await asyncio.to_thread(worker.post, f"{_LETTERS}/operations", request))["job"]
    async with asyncio.timeout(_REPLAYED_WITHIN):
        state = await _ended(worker, f"{_LETTERS}/jobs/{job}")
        if state["state"] != "done" or state["asked"] != len(matching):
            raise NotMeasured(f"the job ended as {state}")
        async with Counted(ground) as counted:
            await counted.each_once(matching, process)
            if len(counted.seen) != len(matching):
                raise NotMeasured(f"{len(counted.seen):,} events came out in place of {len(matching):,}")
    took = time.perf_counter() - began
    left = await asyncio.to_thread(_count, worker, _LETTERS, {"limit": str(_PAGE)})
    if left != number - len(matching):
        raise NotMeasured(f"{left:,} letters are left after the replay of {len(matching):,} of {number:,}")
    return took


async def _ended(worker: WorkerAddress, path: str) -> Any:
    while True:
        state = await asyncio.to_thread(worker.get, path)
        if state["state"] != "running":
            return state
        await asyncio.sleep(_LOOK_EVERY)
