"""A topic that somebody deletes, and makes again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from agents.messages import StockReceived
from chaos.faults.ground import OPEN_WITHIN, Ground, happened
from chaos.faults.workers import restart
from chaos.rig.compaction import own_settings
from chaos.rig.fleet import worker_name
from chaos.rig.kinds import BROKERS, Planned
from chaos.rig.records import Happened
from chaos.rig.waiting import ChaosFailed, until, until_answered
from demo.evidence import quiet

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
