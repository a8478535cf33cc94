"""Polling relays at each of their steps, with a real PostgreSQL and a real Kafka: killed, and frozen.

What holds of both kinds of relay is in `test_relays.py`.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from streams.local import Stack
from streams.positions.declared import TopicSpec
from streams.postgres import Database
from streams.postgres.cdc import RelayKind
from streams.runtime.client import TopicReader
from streams.runtime.kafka.topics import KafkaTopics
from tests.relays import Step, first_time, new_outbox, publish, unpublished, until
from tests.scenarios.relay_ground import Ground, new_orders, prepared


class Unheard(Step, frozen=True, kw_only=True):
    """For a topic that is made later."""

    TOPIC = "shop.order.unheard.v1"


@pytest.fixture
async def ground(kafka: Stack, postgres_url: str, tmp_path: Path) -> AsyncIterator[Ground]:
    await prepared(kafka.bootstrap)
    async with Database(postgres_url) as database:
        yield Ground(RelayKind.POLL, kafka.bootstrap, database, tmp_path, new_orders())


@pytest.mark.parametrize(
    "point",
    [
        "published",
        pytest.param("fetched", marks=pytest.mark.verify("a process for each point")),
        pytest.param("marked", marks=pytest.mark.verify("a process for each point")),
    ],
)
async def test_a_killed_relay_loses_nothing_and_the_next_continues(ground: Ground, point: str) -> None:
    await ground.publish(*range(5))
    with ground.relay(faults=f"{point}:1:kill") as killed:
        await until(lambda: killed.poll() is not None)
        assert killed.returncode == -signal.SIGKILL
    assert f"{point}:1:kill" in (ground.directory / "faults.log").read_text()
    with ground.relay() as next_one:
        await ground.publish(5)
        await ground.drained()
        next_one.send_signal(signal.SIGINT)
        await until(lambda: next_one.poll() is not None)
        assert next_one.returncode == 0
    repeated = await ground.must_be_whole(6)
    assert repeated > 0 if point == "published" else repeated == 0


@pytest.mark.verify("a process for each point")
async def test_a_relay_killed_after_a_refusal_publishes_the_row_later(
    ground: Ground,
) -> None:
    await ground.publish(0)
    refused = ground.orders[0]
    async with ground.database.acquire() as connection:
        await publish(new_outbox(), connection, (refused, 1), kind=Unheard)
    await ground.publish(2)
    with ground.relay(faults="refused:1:kill") as killed:
        await until(lambda: killed.poll() is not None)
        assert killed.returncode == -signal.SIGKILL
    with ground.relay():
        await until(lambda: _is(unpublished(ground.database), 2))
        async with KafkaTopics(ground.bootstrap) as topics:
            await topics.create([TopicSpec(Unheard.TOPIC, 1, 1)])
        await ground.drained()
    found = await ground.came()
    assert {order: first_time(found[order]) for order in ground.orders} == {
        order: [0, 2] for order in ground.orders
    }
    async with TopicReader(ground.bootstrap, [Unheard.TOPIC]) as reader:
        ids = [dict(record.headers)["ce_id"] async for record in reader.to_end()]
    assert set(ids) == {f"{refused}:1".encode()}


@pytest.mark.verify("waits for a lease to end")
async def test_a_frozen_relay_loses_its_shards_and_repeats_little(
    ground: Ground,
) -> None:
    with ground.relay() as frozen:
        await until(lambda: _is(ground.owners(), 1))
        frozen.send_signal(signal.SIGSTOP)
        await ground.publish(*range(5))
        with ground.relay():
            await ground.drained()
            frozen.send_signal(signal.SIGCONT)
            await until(lambda: _is(ground.owners(), 2))  # it has joined again
            await ground.publish(5, 6)
            await ground.drained()
    await ground.must_be_whole(7)


async def _is(counted: Awaitable[int], wanted: int) -> bool:
    return await counted == wanted
