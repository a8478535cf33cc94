"""Faults of brokers and topics. The stack starts a broker that has ended again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from agents.messages import StockReceived
from chaos.faults.ground import HEALS_WITHIN, OPEN_WITHIN, Ground, happened, lasting
from chaos.faults.workers import restart
from chaos.rig.brokers import own_settings
from chaos.rig.fleet import worker_name
from chaos.rig.kinds import BROKERS, Planned
from chaos.rig.records import Happened
from chaos.rig.waiting import ChaosFailed, until, until_answered
from demo.evidence import quiet

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


_MADE_WITHIN = 60.0
_ACCEPTED_WITHIN = 60.0
_STOPS = ("TopicRecreated", "PositionLost")


async def recreate_topic(planned: Planned, ground: Ground) -> Happened:
    """The receipts' topic is deleted and made again under running workers. Lanes stop for it within seconds
    and handle nothing of it, until an operator accepts it; then the client sends all receipts again.
    """
    topic, app_id = StockReceived.TOPIC, ground.layout.app_id
    with ground.load.without_receipts():
        if left := await quiet(ground.stack.bootstrap, app_id, within=OPEN_WITHIN, topics=(topic,)):
            raise ChaosFailed(f"{topic} is to be recreated, and is not handled: {left}")
        marks = [(worker, worker.log.mark()) for worker in ground.fleet.alive]
        began = time.time()
        await _make_anew(ground.stack.bootstrap, topic)

        def stopped() -> set[int]:
            events = [event for worker, mark in marks for event in worker.log.events("lane_stopped", mark)]
            return {event["lane"] for event in events if any(name in str(event) for name in _STOPS)}

        await until(stopped, f"a lane stops because {topic} was recreated", within=OPEN_WITHIN)
        noticed = time.time() - began
        accepted = await asyncio.to_thread(_accept, ground, topic)
        slots = sorted(worker.slot for worker in ground.fleet.alive)
        for slot in slots:
            await ground.until_open(await restart(planned, ground, slot))
    names = ", ".join(map(worker_name, slots))
    lanes = f"{len(stopped())} lanes stopped for it, the first {noticed:.1f} s later"
    confirmed = f"{lanes}; {accepted} partitions accepted, then handled again"
    return happened(planned, names, began, confirmed)


def _accept(ground: Ground, topic: str) -> int:
    """As an operator does; returns how many partitions."""
    ended = subprocess.run(
        [Path(sys.executable).parent / "steadfaust", "positions", "accept", "--topic", topic, "--json"],
        env={**os.environ, **ground.fleet.settings, "STEADFAUST_BOOTSTRAP": ground.stack.bootstrap},
        capture_output=True,
        text=True,
        timeout=_ACCEPTED_WITHIN,
        check=False,
    )
    if ended.returncode:
        raise ChaosFailed(f"{topic} is not accepted: status {ended.returncode}, {ended.stderr.strip()}")
    return len(ended.stdout.splitlines())


async def _make_anew(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        (described,) = await admin.describe_topics([topic])
        partitions = len(described["partitions"])
        config = (await own_settings(admin, [topic]))[topic]
        made = NewTopic(topic, partitions, BROKERS, topic_configs=config)
        await admin.delete_topics([topic])
        await until_answered(lambda: _created(admin, made), f"{topic} is there again", within=_MADE_WITHIN)
        await until_answered(lambda: _led(admin, made), f"{topic} has leaders", within=_MADE_WITHIN)
    finally:
        await admin.close()


async def _created(admin: Any, topic: NewTopic) -> bool:
    """Not while the former one is being deleted."""
    answer = await admin.create_topics([topic])
    ((_, code, *_),) = answer.topic_errors
    error: type[KafkaError] = for_code(code)
    if code and error is not TopicAlreadyExistsError:
        raise error(topic.name)
    return not code


async def _led(admin: Any, topic: NewTopic) -> bool:
    (found,) = await admin.describe_topics([topic.name])
    led = [each for each in found["partitions"] if each["leader"] >= 0 and not each["error_code"]]
    return not found["error_code"] and len(led) == topic.num_partitions
