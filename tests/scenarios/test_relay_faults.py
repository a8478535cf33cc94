"""Relays as processes, on a real PostgreSQL and a real Kafka, which are killed, frozen and cut off."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from streams.local import Stack, local_stack
from streams.model.layout import Layout
from streams.postgres import Database
from streams.postgres.database import connect
from streams.postgres.errors import DatabaseUnavailable
from streams.runtime.client import TopicReader
from streams.runtime.declared import TopicSpec
from streams.runtime.topics import KafkaTopics
from tests.relays import Step, drained, first_time, new_outbox, publish, unpublished, until

APP = "relay-faults"
ORDERS = [f"o-{uuid4()}" for _ in range(20)]
BOUND = 120.0


class Unheard(Step, frozen=True, kw_only=True):
    """For a topic that is made later."""

    TOPIC = "shop.order.unheard.v1"


class Ground(NamedTuple):
    """Where it happens."""

    bootstrap: str
    database: Database
    directory: Path

    @contextmanager
    def relay(self, faults: str = "", **settings: str) -> Iterator[subprocess.Popen[bytes]]:
        """A relay's process for the time of the block."""
        environment = {
            **os.environ,
            "STEADFAUST_APP_ID": APP,
            "STEADFAUST_POSTGRES_URL": self.database.url,
            "STEADFAUST_BOOTSTRAP": self.bootstrap,
            "STEADFAUST_FAULTS": faults,
            "STEADFAUST_FAULTS_LOG": str(self.directory / "faults.log"),
            **settings,
        }
        command = [str(Path(sys.executable).with_name("steadfaust")), "outbox", "relay", "--port", "0"]
        with (self.directory / "relay.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(timeout=BOUND)

    async def publish(self, *numbers: int) -> None:
        outbox = new_outbox()
        async with self.database.acquire() as connection:
            for number in numbers:
                await publish(outbox, connection, *((order, number) for order in ORDERS))

    async def owners(self) -> int:
        """How many relays own a shard."""
        async with self.database.acquire() as connection:
            counted = "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
            return int(await connection.fetchval(counted))

    async def came(self) -> dict[str, list[int]]:
        """The numbers of each order, as they lie in the topic."""
        found = defaultdict(list)
        async with TopicReader(self.bootstrap, [Step.TOPIC]) as reader:
            async for record in reader.to_end():
                order, _, number = dict(record.headers)["ce_id"].decode().rpartition(":")
                found[order].append(int(number))
        return found

    async def must_be_whole(self, numbers: int) -> int:
        """Every number of every order has come, first in its order; returns how many were repeated."""
        found = await self.came()
        assert {order: first_time(found[order]) for order in ORDERS} == {
            order: list(range(numbers)) for order in ORDERS
        }
        return sum(len(found[order]) for order in ORDERS) - numbers * len(ORDERS)


async def prepared(bootstrap: str) -> None:
    async with KafkaTopics(bootstrap) as topics:
        announcements = Layout(APP, 1, 1).announcements
        found = await topics.describe([announcements, Step.TOPIC])
        specs = (TopicSpec(announcements, 1, 1), TopicSpec(Step.TOPIC, 3, 1))
        await topics.create(spec for spec in specs if spec.name not in found)


@pytest.fixture
async def ground(kafka: Stack, postgres_url: str, tmp_path: Path) -> AsyncIterator[Ground]:
    await prepared(kafka.bootstrap)
    ORDERS[:] = [f"o-{uuid4()}" for _ in ORDERS]  # the topic is the session's
    async with Database(postgres_url) as database:
        yield Ground(kafka.bootstrap, database, tmp_path)


@pytest.mark.parametrize(
    "point",
    [
        "published",
        pytest.param("fetched", marks=pytest.mark.verify("a process for each point")),
        pytest.param("marked", marks=pytest.mark.verify("a process for each point")),
    ],
)
async def test_a_relay_that_is_killed_loses_nothing_and_the_next_one_goes_on(
    ground: Ground, point: str
) -> None:
    await ground.publish(*range(5))
    with ground.relay(faults=f"{point}:1:kill") as killed:
        await until(lambda: killed.poll() is not None, BOUND)
        assert killed.returncode == -signal.SIGKILL
    assert f"{point}:1:kill" in (ground.directory / "faults.log").read_text()
    with ground.relay() as next_one:
        await ground.publish(5)
        await drained(ground.database, BOUND)
        next_one.send_signal(signal.SIGINT)
        await until(lambda: next_one.poll() is not None, BOUND)
        assert next_one.returncode == 0
    repeated = await ground.must_be_whole(6)
    assert repeated > 0 if point == "published" else repeated == 0


@pytest.mark.verify("a process for each point")
async def test_a_relay_that_is_killed_when_a_row_was_refused_goes_on_and_publishes_it_when_it_may(
    ground: Ground,
) -> None:
    await ground.publish(0)
    refused = ORDERS[0]
    async with ground.database.acquire() as connection:
        await publish(new_outbox(), connection, (refused, 1), kind=Unheard)
    await ground.publish(2)
    with ground.relay(faults="refused:1:kill") as killed:
        await until(lambda: killed.poll() is not None, BOUND)
        assert killed.returncode == -signal.SIGKILL
    with ground.relay():
        await until(lambda: _is(unpublished(ground.database), 2), BOUND)
        async with KafkaTopics(ground.bootstrap) as topics:
            await topics.create([TopicSpec(Unheard.TOPIC, 1, 1)])
        await drained(ground.database, BOUND)
    found = await ground.came()
    assert {order: first_time(found[order]) for order in ORDERS} == {order: [0, 2] for order in ORDERS}
    async with TopicReader(ground.bootstrap, [Unheard.TOPIC]) as reader:
        ids = [dict(record.headers)["ce_id"] async for record in reader.to_end()]
    assert set(ids) == {f"{refused}:1".encode()}


@pytest.mark.verify("waits for a lease to end")
async def test_a_frozen_relay_loses_its_shards_and_what_it_had_in_hand_comes_twice_at_most(
    ground: Ground,
) -> None:
    with ground.relay() as frozen:
        await until(lambda: _is(ground.owners(), 1), BOUND)
        frozen.send_signal(signal.SIGSTOP)
        await ground.publish(*range(5))
        with ground.relay():
            await drained(ground.database, BOUND)
            frozen.send_signal(signal.SIGCONT)
            await until(lambda: _is(ground.owners(), 2), BOUND)  # it has joined again
            await ground.publish(5, 6)
            await drained(ground.database, BOUND)
    await ground.must_be_whole(7)


async def test_a_crash_of_postgresql_is_waited_out(ground: Ground) -> None:
    """A server process that is killed takes every session with it, and all that was not on the disk."""
    with ground.relay() as relay:
        await ground.publish(0, 1)
        await drained(ground.database, BOUND)
        connection = await connect(ground.database.url)
        os.kill(await connection.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
        await until(lambda: connection.is_closed(), BOUND)
        await until(lambda: _answers(ground), BOUND)
        await ground.publish(2, 3)
        await drained(ground.database, BOUND)
        assert relay.poll() is None
    await ground.must_be_whole(4)


@pytest.mark.verify("a broker of its own, which is killed and comes back")
async def test_nothing_is_lost_when_the_broker_is_killed(postgres_url: str, tmp_path: Path) -> None:
    with local_stack(tmp_path / "stack", revive_after=3.0) as stack:
        await prepared(stack.bootstrap)
        async with Database(postgres_url) as database:
            ground = Ground(stack.bootstrap, database, tmp_path)
            with ground.relay() as relay:
                await ground.publish(0)
                await drained(database, BOUND)
                killed = stack.state.brokers[0]
                stack.signal_broker(killed.id, signal.SIGKILL)
                await ground.publish(*range(1, 6))
                assert await unpublished(database) > 0
                await until(lambda: stack.state.brokers[0].pid != killed.pid, BOUND)
                await drained(database, BOUND)
                assert relay.poll() is None
            await ground.must_be_whole(6)


async def _is(counted: Awaitable[int], wanted: int) -> bool:
    return await counted == wanted


async def _answers(ground: Ground) -> bool:
    try:
        connection = await connect(ground.database.url)
    except DatabaseUnavailable:  # it recovers
        await asyncio.sleep(0.1)
        return False
    await connection.close()
    return True
