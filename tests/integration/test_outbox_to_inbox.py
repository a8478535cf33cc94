"""From the outbox by a relay and Kafka to an inbox: what a crash publishes twice is handled once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest

from streams.local import Stack
from streams.model.envelope import Envelope
from streams.ports import Record
from streams.postgres import Connection, ConsumerInbox, Database, InboxEvent
from streams.postgres.relay import Relay
from streams.runtime.client import TopicReader
from streams.runtime.declared import TopicSpec
from streams.runtime.outbox_publisher import KafkaPublisher
from streams.runtime.topics import KafkaTopics
from tests.relays import BOUND, QUICK, Step, drained, new_outbox, publish, relaying, unpublished

ANNOUNCEMENTS = "outbox-to-inbox-announcements"
ORDERS, NUMBERS = 7, 5


class Stuck:
    """Comes to a point, and never goes on."""

    def __init__(self, point: str) -> None:
        self.is_there = asyncio.Event()
        self._point = point

    async def reach(self, point: str) -> None:
        if point == self._point:
            self.is_there.set()
            await asyncio.Event().wait()


@pytest.fixture
async def bootstrap(kafka: Stack) -> str:
    async with KafkaTopics(kafka.bootstrap) as topics:
        found = await topics.describe([ANNOUNCEMENTS, Step.TOPIC])
        specs = (TopicSpec(ANNOUNCEMENTS, 1, 1), TopicSpec(Step.TOPIC, 3, 1))
        await topics.create(spec for spec in specs if spec.name not in found)
    return kafka.bootstrap


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url) as database:
        await database.pool.execute(
            "CREATE TABLE handled (place bigint GENERATED ALWAYS AS IDENTITY, id text)"
        )
        yield database


async def came(bootstrap: str, orders: Sequence[str]) -> list[Record]:
    keys = {order.encode() for order in orders}
    async with TopicReader(bootstrap, [Step.TOPIC]) as reader:
        return [record async for record in reader.to_end() if record.key in keys]


async def handle(connection: Connection, events: Sequence[InboxEvent]) -> None:
    await connection.executemany(
        "INSERT INTO handled (id) VALUES ($1)", [(each.event_id,) for each in events]
    )


async def consume(inbox: ConsumerInbox, records: Sequence[Record]) -> None:
    """In batches that do not begin where the relay's did."""
    events = []
    for record in records:
        envelope = Envelope(record)
        events.append(InboxEvent(envelope.id, record.topic, envelope.type, record.value or b""))
    for start in range(0, len(events), 3):
        await inbox.process_batch(events[start : start + 3], handle)


async def test_what_a_relay_published_twice_is_handled_once(database: Database, bootstrap: str) -> None:
    orders = [f"o-{uuid4()}" for _ in range(ORDERS)]
    async with database.acquire() as connection:
        for number in range(NUMBERS):
            await publish(new_outbox(), connection, *((order, number) for order in orders))
    stuck = Stuck("published")
    relay = Relay(database.url, KafkaPublisher(bootstrap, ANNOUNCEMENTS), QUICK, faults=stuck)
    running = asyncio.create_task(relay.run())
    async with asyncio.timeout(BOUND):
        await stuck.is_there.wait()
    running.cancel()  # between what Kafka has answered and the mark in PostgreSQL
    await asyncio.wait([running])
    assert await unpublished(database) == ORDERS * NUMBERS
    async with relaying(database.url, KafkaPublisher(bootstrap, ANNOUNCEMENTS)):
        await drained(database)
    records = await came(bootstrap, orders)
    assert len(records) > ORDERS * NUMBERS, "nothing came twice"
    await consume(ConsumerInbox(database, "tally"), records)
    found = defaultdict(list)
    for row in await database.pool.fetch("SELECT id FROM handled ORDER BY place"):
        order, _, number = row["id"].rpartition(":")
        found[order].append(int(number))
    assert found == {order: list(range(NUMBERS)) for order in orders}
