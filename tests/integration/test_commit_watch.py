"""The watch over lanes' commits on real Kafka, also while a broker is killed and comes back."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from chaos.rig.commits import CommitWatch
from streams.errors import SteadfaustError
from streams.local import local_stack
from streams.ports import TP, Outgoing
from streams.positions.declared import TopicSpec
from streams.runtime.cluster import KafkaCluster
from streams.runtime.kafka.topics import KafkaTopics
from tests.waiting import eventually_async

TOPIC = "app-lane-changelog"


async def commit(bootstrap: str, *partitions: int) -> None:
    """A transaction, as a lane's owner makes it."""
    cluster = KafkaCluster(bootstrap)
    producer = cluster.transactions("app-lane")
    try:
        await producer.start()
        await producer.begin()
        await producer.send({TP(TOPIC, number): [Outgoing(b"k", b"v", [])] for number in partitions})
        await producer.commit()
    finally:
        await producer.discard()
        await cluster.close()


async def committed(bootstrap: str, partition: int) -> bool:
    try:
        await commit(bootstrap, partition)
    except SteadfaustError:
        return False
    return True


@pytest.mark.verify("15 s: scenarios/test_chaos_check.py watches real Kafka, test_broker.py kills it")
async def test_commits_are_seen_before_and_after_a_broker_was_killed(tmp_path: Path) -> None:
    async with local_stack(tmp_path, revive_after=1.0) as stack:
        async with KafkaTopics(stack.bootstrap) as topics:
            await topics.create([TopicSpec(TOPIC, 2, 1, {"cleanup.policy": "compact"})])
        await commit(stack.bootstrap, 0)
        watch = CommitWatch(stack.bootstrap, "app", partitions=2, lanes=2)
        watching = asyncio.create_task(watch.run())
        try:
            # What was there before does not count, so it takes a commit to tell that the watch has begun.
            while not watch.commits().seen[0]:
                await commit(stack.bootstrap, 0)
            assert watch.commits().seen[1] == []
            stack.signal_broker(1, signal.SIGKILL)
            await eventually_async(lambda: committed(stack.bootstrap, 1), "a commit after the kill")
            await eventually_async(lambda: watch.commits().seen[1], "the watch has seen it")
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
