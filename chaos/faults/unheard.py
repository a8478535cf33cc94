"""Faults around a worker: nobody reads its log, and its group is refused to it."""

from __future__ import annotations

import time

from chaos.faults.ground import HEALS_WITHIN, OPEN_WITHIN, Ground, happened, lasting, named
from chaos.rig.access import REFUSALS, denied_group
from chaos.rig.kinds import Planned
from chaos.rig.log_pipe import waits_for_reader
from chaos.rig.records import Happened
from chaos.rig.waiting import until
from chaos.rig.worker_faults import arm, script_of
from demo.evidence import SOURCES


async def unread_logs(planned: Planned, ground: Ground) -> Happened:
    """The pipe that a worker logs to is full, and a lane has something to log: all of its lanes go on, and
    what it has to say comes when somebody reads again.
    """
    worker = ground.worker(planned)
    lanes, mark = worker.open_lanes, worker.log.mark()
    began = time.time()
    worker.output.stop_reading()
    try:
        arm(script_of(ground.var, worker.name), "sent:1:raise")
        async with lasting(planned.seconds):
            await until(
                lambda: waits_for_reader(worker.pid),
                f"{worker.name} has something to log, and nobody reads it",
                within=OPEN_WITHIN,  # a lane commits nothing while next to nothing comes in
            )
            # Waited for as long as a lane takes that opens again, beside whatever else goes on.
            partitions = await ground.brokers.until_commits(lanes, SOURCES, within=OPEN_WITHIN)
            waited = waits_for_reader(worker.pid)
    finally:
        worker.output.read_again()
    seconds = time.time() - began
    await until(
        lambda: worker.log.events("lane_reopens", mark),
        f"what {worker.name} logged comes at last: see {worker.log.path}",
        within=OPEN_WITHIN,
    )
    await ground.until_open(worker)
    later = len(worker.log.events("lane_reopens", mark))
    confirmed = (
        f"nobody read its log for {seconds:.1f} s; {named(lanes)} committed meanwhile in {partitions}"
        f" partitions; then {later} lane_reopens came"
    )
    return happened(planned, worker.name, began, confirmed if waited else "")


async def group_denied(planned: Planned, ground: Ground) -> Happened:
    """The right to READ the group is taken from everybody for longer than a session: no worker is a member,
    none commits, and none ends. Each says what is refused, and all lanes open when it is granted again.
    """
    workers = ground.fleet.alive
    marks = [(worker, worker.log.mark()) for worker in workers]

    def named_it() -> list[str]:
        return [
            worker.name
            for worker, mark in marks
            if any(REFUSALS[0] in each["cause"] for each in worker.log.events("membership_waits", mark))
        ]

    def goes_on() -> bool:
        return all(worker.log.events("membership_goes_on", mark) for worker, mark in marks)

    began = time.time()
    async with denied_group(ground.stack.bootstrap, ground.layout.app_id), lasting(planned.seconds):
        await until(
            lambda: len(named_it()) == len(workers),
            f"every worker names the refusal of its group: see {ground.var / 'log'}",
            within=OPEN_WITHIN,
        )
    seconds = time.time() - began
    await until(goes_on, f"every worker is a member again: see {ground.var / 'log'}", within=OPEN_WITHIN)
    await until(
        lambda: ground.fleet.shared(ground.layout.lanes),
        f"all lanes are open, each with one owner: see {ground.var / 'log'}",
        within=HEALS_WITHIN,
    )
    ended = [worker.name for worker in workers if not worker.alive]
    confirmed = f"refused for {seconds:.1f} s; {len(workers)} workers named it, waited and went on"
    return happened(planned, ", ".join(named_it()), began, "" if ended else confirmed)
