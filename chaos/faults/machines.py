"""Faults of a worker's machine: a clock that is ahead, a disk that fails, too many open files."""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from chaos.faults.ground import OPEN_WITHIN, Ground, happened, lasting, named
from chaos.rig.failing_disk import CHANGES, Call
from chaos.rig.fleet import FleetWorker, disk_of
from chaos.rig.kinds import Planned
from chaos.rig.records import Happened
from chaos.rig.waiting import until
from chaos.rig.worker_faults import arm, clock_of, script_of

#: By how many seconds the clock is ahead: more than the hour that brokers bear.
AHEAD = 7200
#: Files of a process that has no more: what it has open stays open.
_NO_FILES = 3
_NO_MORE_FILES = "oo many open files"
_AHEAD = "ahead of the broker's"
_STOPS = ("lane_waits", "lane_reopens")


@dataclass(frozen=True)
class Disk:
    """A way in which a disk fails: these calls, with this error."""

    says: str
    error: int
    calls: Call


#: By `Planned.which`.
DISKS = (
    Disk("input/output error", errno.EIO, CHANGES),
    Disk("input/output error, reads too", errno.EIO, CHANGES | Call.READ),
    Disk("read-only file system", errno.EROFS, CHANGES),
    Disk("no space left", errno.ENOSPC, Call.CREATE | Call.WRITE | Call.SYNC | Call.MAKE),
)


async def clock_ahead(planned: Planned, ground: Ground) -> Happened:
    """Brokers refuse all that a worker writes; it says why, and goes on when its clock is right."""
    worker = ground.worker(planned)
    mark, began = worker.log.mark(), time.time()

    def waiting() -> set[int]:
        return {each["lane"] for each in worker.log.events("lane_waits", mark) if _AHEAD in each["cause"]}

    file = clock_of(ground.var, worker.name)
    arm(file, str(AHEAD))
    try:
        async with lasting(planned.seconds):
            await until(waiting, f"{worker.name} waits: {_AHEAD}", within=OPEN_WITHIN)
    finally:
        file.unlink()
    return await _over(planned, ground, worker, mark, began, f"{named(waiting())} waited: {_AHEAD}")


async def failing_disk(planned: Planned, ground: Ground) -> Happened:
    """System calls fail below a worker's directory; its lanes are open again when the disk is healthy,
    without a restart.
    """
    worker = ground.worker(planned)
    disk = disk_of(ground.var, ground.layout.app_id, worker.slot)
    how = DISKS[planned.which]
    mark, began = worker.log.mark(), time.time()
    disk.fail(how.error, how.calls)
    try:
        async with lasting(planned.seconds):
            await until(lambda: disk.refused, f"{worker.name} meets the failing disk", within=OPEN_WITHIN)
    finally:
        disk.heal()
    failed = time.time() - began
    lanes = {each["lane"] for name in _STOPS for each in worker.log.events(name, mark)}
    confirmed = f"{disk.refused} calls failed ({how.says}) in {failed:.1f} s, and {named(lanes)} with them"
    return await _over(planned, ground, worker, mark, began, confirmed)


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
