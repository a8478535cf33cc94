"""Faults of workers: killed, frozen, and started or ended in order."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from chaos.faults.ground import OPEN_WITHIN, Ground, happened, lasting, named
from chaos.load.notes import VERSION, NoteMade
from chaos.rig.fleet import FleetWorker, worker_name
from chaos.rig.kinds import RECOVERING, AfterKill, Planned
from chaos.rig.records import KILLED_TWICE, Happened
from chaos.rig.waiting import ChaosFailed, until
from chaos.rig.worker_faults import arm, log_of, script_of

_HANDLED_WITHIN = 60.0


async def kill_worker(planned: Planned, ground: Ground) -> Happened:
    """SIGKILL; started again on the same directory, on an emptied one, or never."""
    worker = ground.worker(planned)
    lanes = worker.open_lanes
    began = time.time()
    worker.kill(planned.kind)
    confirmed = f"{_died(worker)} with {named(lanes)} open"
    if planned.after is AfterKill.NEVER:
        heirs = await ground.until_taken_over(lanes, worker)
        return happened(planned, worker.name, began, f"{confirmed}; never back, {_taken(heirs)}", heals=False)
    if planned.after is AfterKill.EMPTIED:
        confirmed += f"; the stores of {ground.fleet.wipe(worker.slot)} lanes removed"
    again = await ground.fleet.start(worker.slot)
    await ground.until_open(again)
    return happened(planned, worker.name, began, f"{confirmed}; back on {planned.after}")


async def kill_at_point(planned: Planned, ground: Ground) -> Happened:
    """A worker kills itself at a point of the commit protocol, or while it recovers from a lost disk."""
    began = time.time()
    worker = ground.worker(planned)
    script = _arm(planned, ground, worker, "kill")
    if planned.point == RECOVERING:
        worker.kill(f"{planned.kind}: it must have something to recover")
        ground.fleet.wipe(worker.slot)
        worker = await ground.fleet.start(worker.slot)
    worker.expected = f"{planned.kind} {planned.point}"
    await until(lambda: not worker.alive, f"{worker.name} ends at {planned.point}", within=OPEN_WITHIN)
    if planned.point != RECOVERING:
        began = time.time()
    confirmed = f"{_died(worker)} at the point {_reached(worker, script)}"
    again = await ground.fleet.start(worker.slot)
    await ground.until_open(again)
    done = happened(planned, worker.name, began, confirmed)
    return structs.replace(done, kind=KILLED_TWICE) if planned.point == RECOVERING else done


async def freeze_worker(planned: Planned, ground: Ground) -> Happened:
    """SIGSTOP for longer than the session: another takes its lanes, and it wakes as a zombie."""
    worker = ground.worker(planned)
    began = time.time()
    worker.freeze()
    return await _zombie(planned, ground, worker, began, "frozen by SIGSTOP")


async def freeze_at_point(planned: Planned, ground: Ground) -> Happened:
    """The same, at a point of the commit protocol: most often with a transaction open."""
    worker = ground.worker(planned)
    script = _arm(planned, ground, worker, "stop")
    await until(
        lambda: _reached(worker, script), f"{worker.name} freezes at {planned.point}", within=OPEN_WITHIN
    )
    began = time.time()
    return await _zombie(planned, ground, worker, began, f"frozen at the point {_reached(worker, script)}")


async def rolling_restart(planned: Planned, ground: Ground) -> Happened:
    """Each worker is ended in order and started again in its slot; the next one when its lanes are open."""
    began = time.time()
    slots = sorted(worker.slot for worker in ground.fleet.alive)
    for slot in slots:
        await ground.until_open(await restart(planned, ground, slot))
    names = ", ".join(map(worker_name, slots))
    return happened(planned, names, began, f"{len(slots)} workers ended with code 0, each opened lanes again")


async def rolling_deploy(planned: Planned, ground: Ground) -> Happened:
    """The same with a version that adds a topic: it waits until the last old worker has gone."""
    began = time.time()
    ground.fleet.settings[VERSION] = "2"
    slots = sorted(worker.slot for worker in ground.fleet.alive)
    for slot in slots:
        await ground.until_open(await restart(planned, ground, slot))
        ground.load.begin_notes()
    partitions = await ground.brokers.until_handled(NoteMade.TOPIC, within=_HANDLED_WITHIN)
    names = ", ".join(map(worker_name, slots))
    confirmed = (
        f"{len(slots)} workers replaced; {NoteMade.TOPIC} is handled, {partitions} partitions committed"
    )
    return happened(planned, names, began, confirmed)


async def add_worker(planned: Planned, ground: Ground) -> Happened:
    """One more joins, and is given lanes of the others."""
    assert planned.slot is not None
    began = time.time()
    worker = await ground.fleet.start(planned.slot)
    await ground.until_open(worker)
    return happened(planned, worker.name, began, f"was given {named(worker.lanes)}, and opened them")


async def remove_worker(planned: Planned, ground: Ground) -> Happened:
    """One ends in order and does not come back: others take its lanes when its session is over."""
    worker = ground.worker(planned)
    lanes = worker.lanes
    began = time.time()
    await _stop(worker, planned.kind)
    heirs = await ground.until_taken_over(lanes, worker)
    confirmed = f"ended with code 0; its {named(lanes)} {_taken(heirs)}"
    return happened(planned, worker.name, began, confirmed, heals=False)


async def change_lanes(planned: Planned, ground: Ground) -> Happened:
    """Another number of lanes while a worker is frozen with work staged: the others begin anew with it.
    Awake, the frozen one changes nothing, and ends.
    """
    frozen = ground.worker(planned)
    script = _arm(planned, ground, frozen, "stop")
    await until(
        lambda: _reached(frozen, script), f"{frozen.name} freezes at {planned.point}", within=OPEN_WITHIN
    )
    began = time.time()
    lanes, mark = frozen.lanes, frozen.log.mark()
    frozen.expected = f"{planned.kind}: it belongs to another number of lanes"
    frozen.refused = True
    others = [worker for worker in ground.fleet.alive if worker is not frozen]
    try:
        # All at once: none of them is to take the frozen one's lanes over, which would fence it.
        await asyncio.gather(*(_stop(worker, planned.kind) for worker in others))
        before, after = ground.layout.lanes, ground.change_lanes()
        again = await asyncio.gather(*(ground.fleet.start(worker.slot) for worker in others))
        await until(
            lambda: _open_lanes(again) == list(range(after)),
            f"all {after} lanes are open",
            within=OPEN_WITHIN,
        )
    finally:
        frozen.thaw()
    thawed = time.time()
    await until(lambda: not frozen.alive, f"{frozen.name} ends: see {frozen.log.path}", within=OPEN_WITHIN)
    ended = f"it was fenced {_fenced(frozen, mark)} times and ended with {frozen.exit_code}"
    await ground.until_open(await ground.fleet.start(frozen.slot))
    confirmed = (
        f"frozen at the point {_reached(frozen, script)} for {thawed - began:.1f} s with {named(lanes)};"
        f" {before} lanes became {after}; awake, {ended}"
    )
    return happened(planned, frozen.name, began, confirmed)


async def sleep_past_tombstones(planned: Planned, ground: Ground) -> Happened:
    """SIGSTOP for longer than changelogs keep deletions: from what it had, a worker must not go on."""
    worker = ground.worker(planned)
    mark = worker.log.mark()
    began = time.time()
    worker.freeze()
    done = await _zombie(planned, ground, worker, began, "frozen by SIGSTOP")

    def rebuilt() -> int:
        return sum(len(worker.log.events(event, mark)) for event in ("store_too_old", "standby_too_old"))

    await until(rebuilt, f"{worker.name} rebuilds what is too old: see {worker.log.path}", within=OPEN_WITHIN)
    return structs.replace(done, confirmed=f"{done.confirmed}; {rebuilt()} copies were too old")


async def outage(planned: Planned, ground: Ground) -> Happened:
    """SIGKILL of all; they come back when the deadlines of all sagas are past."""
    workers = ground.fleet.alive
    began = time.time()
    for worker in workers:
        worker.kill(planned.kind)
    died = [_died(worker) for worker in workers]
    async with lasting(planned.seconds):
        pass
    away = time.time() - began
    for again in await asyncio.gather(*(ground.fleet.start(worker.slot) for worker in workers)):
        await ground.until_open(again)
    names = ", ".join(worker.name for worker in workers)
    return happened(planned, names, began, f"{'; '.join(died)}; none there for {away:.1f} s")


async def _zombie(planned: Planned, ground: Ground, worker: FleetWorker, began: float, how: str) -> Happened:
    """Thaw a frozen worker when its lanes are others', and wait until it has noticed and is whole again."""
    lanes = worker.lanes
    mark = worker.log.mark()
    try:
        async with lasting(planned.seconds):
            heirs = await ground.until_taken_over(lanes, worker)
    finally:
        worker.thaw()
    thawed = time.time()
    await until(
        lambda: _fenced(worker, mark) or worker.log.events("lanes_assigned", mark),
        f"{worker.name} notices that it was a zombie: see {worker.log.path}",
        within=OPEN_WITHIN,
    )
    await ground.until_open(worker)
    fenced = _fenced(worker, mark)
    noticed = f"fenced {fenced} times" if fenced else "removed from its group"
    return happened(
        planned,
        worker.name,
        began,
        f"{how} for {thawed - began:.1f} s; {named(lanes)} {_taken(heirs)}; awake, it was {noticed}",
    )


def _arm(planned: Planned, ground: Ground, worker: FleetWorker, action: str) -> Path:
    """Leave a script for a worker that runs; returns where."""
    script = script_of(ground.var, worker.name)
    arm(script, f"{planned.point}:{planned.nth}:{action}")
    return script


def _reached(worker: FleetWorker, script: Path) -> str:
    """What the armed worker has written before it acted, such as `sent:3:kill`; empty: nothing yet."""
    log = log_of(script)
    lines = log.read_text().splitlines() if log.exists() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {worker.pid}")), "")


async def restart(planned: Planned, ground: Ground, slot: int) -> FleetWorker:
    """End the worker of a slot in order, and start another one there."""
    worker = ground.fleet.in_slot(slot)
    assert worker is not None
    await _stop(worker, planned.kind)
    return await ground.fleet.start(slot)


async def _stop(worker: FleetWorker, why: str) -> None:
    await worker.stop(why)
    if worker.exit_code != 0:
        raise ChaosFailed(f"{worker.name} ended with {worker.exit_code} on SIGTERM: see {worker.log.path}")


def _died(worker: FleetWorker) -> str:
    if worker.exit_code != -signal.SIGKILL:
        raise ChaosFailed(f"{worker.name} ended with {worker.exit_code}, not killed: see {worker.log.path}")
    return f"pid {worker.pid} ended by SIGKILL"


def _fenced(worker: FleetWorker, mark: int) -> int:
    """How often lanes of a worker were fenced since its log was marked."""
    return sum("Fenced" in event["error"] for event in worker.log.events("lane_reopens", mark))


def _open_lanes(workers: Sequence[FleetWorker]) -> list[int]:
    """The lanes that these workers have open, each as often as it is."""
    return sorted(lane for worker in workers for lane in worker.open_lanes)


def _taken(heirs: list[str]) -> str:
    return f"taken over by {', '.join(heirs)}"
