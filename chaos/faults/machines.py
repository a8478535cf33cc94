"""Faults of a worker's machine: a clock that is ahead, a full disk, too many open files."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.faults.ground import OPEN_WITHIN, Ground, happened, lasting, named
from chaos.rig.fleet import FleetWorker
from chaos.rig.kinds import Planned
from chaos.rig.records import Happened
from chaos.rig.waiting import until
from chaos.rig.worker_faults import CLOCK, DISK, ailment_of, arm, script_of

#: By how many seconds the clock is ahead: more than the hour that brokers bear.
AHEAD = 7200
#: Files of a process that has no more: what it has open stays open.
_NO_FILES = 3
_NO_MORE_FILES = "oo many open files"


async def clock_ahead(planned: Planned, ground: Ground) -> Happened:
    """Brokers refuse all that a worker writes; it says why, and goes on when its clock is right."""
    worker = ground.worker(planned)
    return await _ailing(planned, ground, worker, f"{CLOCK} {AHEAD}", "ahead of the broker's")


async def disk_full(planned: Planned, ground: Ground) -> Happened:
    """A worker's stores take nothing; it keeps them, says why, and goes on when there is room."""
    return await _ailing(planned, ground, ground.worker(planned), DISK, "the disk is full")


async def _ailing(planned: Planned, ground: Ground, worker: FleetWorker, what: str, cause: str) -> Happened:
    mark, began = worker.log.mark(), time.time()

    def waiting() -> set[int]:
        return {each["lane"] for each in worker.log.events("lane_waits", mark) if cause in each["cause"]}

    file = ailment_of(ground.var, worker.name)
    arm(file, what)
    try:
        async with lasting(planned.seconds):
            await until(waiting, f"{worker.name} waits: {cause}", within=OPEN_WITHIN)
    finally:
        file.unlink()
    return await _over(planned, ground, worker, mark, began, f"{named(waiting())} waited: {cause}")


async def too_many_files(planned: Planned, ground: Ground) -> Happened:
    """A worker can open no file and no connection, and a lane has to: it goes on when it can."""
    worker = ground.worker(planned)
    mark, began = worker.log.mark(), time.time()

    def logged() -> list[str]:
        events = [*worker.log.events("lane_reopens", mark), *worker.log.events("lane_waits", mark)]
        return [str(each) for each in events if _NO_MORE_FILES in str(each)]

    with _no_more_files(worker.pid):
        arm(script_of(ground.var, worker.name), "sent:1:raise")
        async with lasting(planned.seconds):
            await until(logged, f"a lane of {worker.name} has no file to open", within=OPEN_WITHIN)
    return await _over(planned, ground, worker, mark, began, f"{len(logged())} times too many open files")


@contextmanager
def _no_more_files(pid: int) -> Iterator[None]:
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (_NO_FILES, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


async def _over(
    planned: Planned, ground: Ground, worker: FleetWorker, mark: int, began: float, confirmed: str
) -> Happened:
    """Wait until all lanes are open again, on their copies."""
    await ground.until_open(worker)
    wiped = len(worker.log.events("store_broken", mark))
    return happened(planned, worker.name, began, f"{confirmed}; {wiped} copies wiped")
