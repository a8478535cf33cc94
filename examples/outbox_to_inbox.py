"""Outbox to inbox: an order commits with its message, and a consumer in PostgreSQL handles the message once.

By hand:

    steadfaust up
    steadfaust db migrate
    steadfaust outbox relay               # in a second terminal
    python -m examples.outbox_to_inbox    # places an order, and handles its message twice
"""

from __future__ import annotations

import asyncio
from uuid import uuid4

from streams import Envelope, Message, Settings
from streams.brokers import Bootstrap
from streams.host.groups import GroupReader
from streams.kafka.topics import KafkaTopics
from streams.model.codecs import JsonCodec, json_without_schema
from streams.ports import Record, TopicSpec
from streams.postgres import Connection, ConsumerInbox, Database, Outbox

TABLES = """
CREATE TABLE IF NOT EXISTS example_orders (id text PRIMARY KEY, cents bigint NOT NULL);
CREATE TABLE IF NOT EXISTS example_sales (id text PRIMARY KEY, cents bigint NOT NULL);
"""


class OrderSold(Message, frozen=True, kw_only=True):
    TOPIC = "examples.order.sold.v1"
    order_id: str
    cents: int

    @property
    def key(self) -> str:
        return self.order_id


outbox = Outbox(json_without_schema, source="example-shop")


async def sell(connection: Connection, sold: OrderSold) -> None:
    """Write the order and its message in one transaction."""
    async with outbox.transaction(connection) as transaction:
        await connection.execute("INSERT INTO example_orders VALUES ($1, $2)", sold.order_id, sold.cents)
        transaction.publish(sold)


async def book(connection: Connection, payload: bytes) -> str:
    """Handle a message: the mark in the inbox commits with this row. Returns the order's id."""
    sold = JsonCodec(OrderSold).decode(payload, None)
    await connection.execute("INSERT INTO example_sales VALUES ($1, $2)", sold.order_id, sold.cents)
    return sold.order_id


async def handle(inbox: ConsumerInbox, record: Record) -> str | None:
    """Give a record to `book`, unless the inbox has its id: then the result is None."""
    sent = Envelope(record)
    return await inbox.process_idempotent(sent.id, record.topic, sent.type, record.value or b"", book)


async def run(bootstrap: Bootstrap, database: Database, sold: OrderSold) -> list[str | None]:
    """Sell an order, and handle its message twice: the results of `handle`."""
    async with KafkaTopics(bootstrap) as topics, database.acquire() as connection:
        await topics.create([TopicSpec(OrderSold.TOPIC, partitions=1, replication=1)])
        await connection.execute(TABLES)
        await sell(connection, sold)
    inbox = ConsumerInbox(database, "example-sales")
    async with GroupReader(bootstrap, "example-sales", [OrderSold.TOPIC]) as reader:
        while not (records := [each for each in await reader.fetch() if each.key == sold.key.encode()]):
            await reader.commit()  # other orders
        results = [await handle(inbox, record) for record in records * 2]
        await reader.commit()
    return results


async def main() -> None:
    settings = Settings.read_or_exit()
    async with Database(settings.postgres()) as database:
        print(await run(settings.brokers(), database, OrderSold(order_id=str(uuid4()), cents=4900)))


if __name__ == "__main__":
    asyncio.run(main())
