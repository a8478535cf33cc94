"""Faults of brokers: killed, restarted, frozen. The stack starts one that has ended again."""

from __future__ import annotations

import signal
import time

from chaos.faults.ground import HEALS_WITHIN, Ground, happened, lasting
from chaos.rig.kinds import Planned
from chaos.rig.records import Happened
from chaos.rig.waiting import ChaosFailed

_REPLACED_WITHIN = 90.0
_MOVED_WITHIN = 90.0


async def kill_broker(planned: Planned, ground: Ground) -> Happened:
    """SIGKILL; it comes back with its data and catches up."""
    return await _end(planned, ground, _broker(planned), signal.SIGKILL)


async def restart_broker(planned: Planned, ground: Ground) -> Happened:
    """SIGTERM: it hands its leaderships over first."""
    return await _end(planned, ground, _broker(planned), signal.SIGTERM)


async def kill_coordinator(planned: Planned, ground: Ground) -> Happened:
    """SIGKILL of the broker that coordinates the group, or a lane's transactions."""
    of = "the group" if planned.lane is None else f"lane {planned.lane}'s transactions"
    broker = await ground.brokers.until_coordinates(planned.lane, within=_MOVED_WITHIN)
    return await _end(planned, ground, broker, signal.SIGKILL, f"coordinator of {of}")


async def pause_broker(planned: Planned, ground: Ground) -> Happened:
    """SIGSTOP for longer than its own session, then SIGCONT: it wakes to a cluster that did without it."""
    broker = _broker(planned)
    began = time.time()
    ground.brokers.signal(broker, signal.SIGSTOP)
    try:
        async with lasting(planned.seconds):
            without = await ground.brokers.until_out_of_sync(broker, within=planned.seconds)
    finally:
        ground.brokers.signal(broker, signal.SIGCONT)
    seconds = time.time() - began
    await ground.brokers.until_in_sync(within=HEALS_WITHIN)
    confirmed = f"frozen for {seconds:.1f} s; {without} partitions did without it, then none"
    return happened(planned, f"broker {broker}", began, confirmed)


async def _end(
    planned: Planned, ground: Ground, broker: int, number: signal.Signals, role: str = ""
) -> Happened:
    brokers = ground.brokers
    pid = brokers.pid(broker)
    began = time.time()
    brokers.signal(broker, number)
    without = await brokers.until_out_of_sync(broker, within=_REPLACED_WITHIN)
    confirmed = f"{role and role + '; '}{without} partitions did without it"
    if role:
        heir = await brokers.until_coordinates(planned.lane, unless=broker, within=_MOVED_WITHIN)
        confirmed += f"; broker {heir} coordinates now"
    await brokers.until_replaced(broker, pid, within=_REPLACED_WITHIN)
    await brokers.until_in_sync(within=HEALS_WITHIN)
    confirmed += f"; pid {pid} ended by {number.name}, pid {brokers.pid(broker)} in its place and in sync"
    return happened(planned, f"broker {broker}", began, confirmed)


def _broker(planned: Planned) -> int:
    if planned.broker is None:
        raise ChaosFailed(f"{planned.kind} is planned without a broker")
    return planned.broker
