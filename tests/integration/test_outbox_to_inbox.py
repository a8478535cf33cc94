"""From the outbox by a relay and Kafka to an inbox: what a crash publishes twice is handled once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from uuid import uuid4

from streams.model.envelope import Envelope
from streams.ports import Record
from streams.postgres import Connection, ConsumerInbox, Database, InboxEvent
from streams.postgres.relay import Relay
from streams.runtime.outbox_publisher import KafkaPublisher
from tests.relays import (
    ANNOUNCEMENTS,
    QUICK,
    Step,
    Stuck,
    drained,
    new_outbox,
    publish,
    relayed,
    relaying,
    unpublished,
)
from tests.waiting import BOUND

ORDERS, NUMBERS = 7, 5


async def handle(connection: Connection, events: Sequence[InboxEvent]) -> None:
    ids = [(each.event_id,) for each in events]
    await connection.executemany("INSERT INTO handled (id) VALUES ($1)", ids)


async def consume(inbox: ConsumerInbox, records: Sequence[Record]) -> None:
    """In batches that do not begin where the relay's did."""
    events = []
    for record in records:
        envelope = Envelope(record)
        events.append(InboxEvent(envelope.id, record.topic, envelope.type, record.value or b""))
    for start in range(0, len(events), 3):
        await inbox.process_batch(events[start : start + 3], handle)


async def test_what_a_relay_published_twice_is_handled_once(
    database: Database, connection: Connection, relays_bootstrap: str
) -> None:
    await connection.execute("CREATE TABLE handled (place bigint GENERATED ALWAYS AS IDENTITY, id text)")
    orders = [f"o-{uuid4()}" for _ in range(ORDERS)]
    for number in range(NUMBERS):
        await publish(new_outbox(), connection, *((order, number) for order in orders))
    stuck = Stuck("published")
    relay = Relay(database.url, KafkaPublisher(relays_bootstrap, ANNOUNCEMENTS), QUICK, faults=stuck)
    running = asyncio.create_task(relay.run())
    async with asyncio.timeout(BOUND):
        await stuck.is_there.wait()
    running.cancel()  # between what Kafka has answered and the mark in PostgreSQL
    await asyncio.wait([running])
    assert await unpublished(database) == ORDERS * NUMBERS
    async with relaying(database.url, KafkaPublisher(relays_bootstrap, ANNOUNCEMENTS)):
        await drained(database)
    keys = {order.encode() for order in orders}
    records = [each for each in await relayed(relays_bootstrap, Step.TOPIC) if each.key in keys]
    assert len(records) > ORDERS * NUMBERS, "nothing came twice"
    await consume(ConsumerInbox(database, "tally"), records)
    found = defaultdict(list)
    for row in await database.pool.fetch("SELECT id FROM handled ORDER BY place"):
        order, _, number = row["id"].rpartition(":")
        found[order].append(int(number))
    assert found == {order: list(range(NUMBERS)) for order in orders}
