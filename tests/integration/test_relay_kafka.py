"""The relay on a real PostgreSQL and a real Kafka."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from streams.local import Stack
from streams.model.codecs import Schemas, avro
from streams.model.schema_versions import nothing_frozen
from streams.ports import Record
from streams.postgres import Database
from streams.postgres.outbox import Outbox
from streams.runtime.client import Producer, TopicReader
from streams.runtime.clients import KafkaOptions
from streams.runtime.declared import TopicSpec
from streams.runtime.outbox_publisher import KafkaPublisher
from streams.runtime.topics import KafkaTopics
from tests.relays import Billed, Step, drained, new_outbox, publish, relaying, until

PARTITIONS = 3
ANNOUNCEMENTS = "relays-announcements"


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url) as database:
        yield database


@pytest.fixture
def outbox() -> Outbox:
    return new_outbox()


@pytest.fixture
async def bootstrap(kafka: Stack) -> str:
    async with KafkaTopics(kafka.bootstrap) as topics:
        found = await topics.describe([ANNOUNCEMENTS, Step.TOPIC])
        specs = (TopicSpec(ANNOUNCEMENTS, 1, 1), TopicSpec(Step.TOPIC, PARTITIONS, 1))
        await topics.create(spec for spec in specs if spec.name not in found)
    return kafka.bootstrap


async def read(bootstrap: str, topic: str) -> list[Record]:
    async with TopicReader(bootstrap, [topic]) as reader:
        return [record async for record in reader.to_end()]


async def numbers(bootstrap: str) -> dict[str, list[int]]:
    """Of each aggregate, as they lie in the topic."""
    found = defaultdict(list)
    for record in await read(bootstrap, Step.TOPIC):
        order, _, number = dict(record.headers)["ce_id"].decode().rpartition(":")
        found[order].append(int(number))
    return found


async def test_a_record_is_the_one_that_a_producer_writes(
    database: Database, outbox: Outbox, bootstrap: str
) -> None:
    order, other = f"o-{uuid4()}", f"o-{uuid4()}"
    async with database.acquire() as connection:
        await publish(outbox, connection, (order, 1))
    async with relaying(database.url, KafkaPublisher(bootstrap, ANNOUNCEMENTS)):
        await drained(database)
    codecs = avro(nothing_frozen, Schemas())
    async with Producer(bootstrap, codecs, source="shop") as producer:
        await producer.send(Step(order=order, number=1), message_id=f"{order}:1")
        await producer.send(Step(order=other, number=1), message_id=f"{other}:1")
    records = await read(bootstrap, Step.TOPIC)
    relayed, sent = [record for record in records if record.key == order.encode()]
    assert (relayed.partition, relayed.value) == (sent.partition, sent.value)
    untimed = [[pair for pair in each.headers if pair[0] != "ce_time"] for each in (relayed, sent)]
    assert untimed[0] == untimed[1]
    announced = {record.key: record.value for record in await read(bootstrap, ANNOUNCEMENTS)}
    codec = outbox.codec(Step)
    assert announced[b"schema:" + codec.fingerprint] == codec.schema.encode()


async def test_two_relays_keep_the_order_of_each_aggregate(
    database: Database, outbox: Outbox, bootstrap: str
) -> None:
    orders = [f"o-{uuid4()}" for _ in range(30)]
    first, second = (KafkaPublisher(bootstrap, ANNOUNCEMENTS) for _ in range(2))
    async with relaying(database.url, first) as one, relaying(database.url, second) as two:
        await until(lambda: one.counts.shards == two.counts.shards == 32)
        async with database.acquire() as late, database.acquire() as connection:
            for number in range(10):
                async with late.transaction():  # its rows have the lower positions and are there later
                    await publish(outbox, late, *((order, number) for order in orders[:15]))
                    await publish(outbox, connection, *((order, number) for order in orders[15:]))
        await drained(database)
    found = await numbers(bootstrap)
    assert {order: found[order] for order in orders} == {order: list(range(10)) for order in orders}


async def test_what_a_broker_refuses_holds_back_its_aggregate_alone(
    database: Database, outbox: Outbox, bootstrap: str
) -> None:
    large, unknown, good = (f"{kind}-{uuid4()}" for kind in ("large", "unknown", "good"))
    roomy = new_outbox(limit=10_000_000)
    async with database.acquire() as connection:
        await publish(roomy, connection, (large, 1), (unknown, 1), (good, 1))
        await publish(roomy, connection, (large, 2), note="n" * 2_000_000)
        await publish(roomy, connection, (unknown, 2), kind=Billed)
        await publish(roomy, connection, (large, 3), (unknown, 3), (good, 2))
        # So large a batch leaves the relay, and the broker refuses it.
        publisher = KafkaPublisher(bootstrap, ANNOUNCEMENTS, KafkaOptions(max_batch=4_000_000))
        async with relaying(database.url, publisher):

            async def tried() -> bool:
                counted = "SELECT count(*) FROM outbox WHERE attempts >= 2 AND published_at IS NULL"
                return await connection.fetchval(counted) == 2

            await until(tried)
            await publish(outbox, connection, (good, 3))

            async def good_is_there() -> bool:
                return (await numbers(bootstrap)).get(good) == [1, 2, 3]

            await until(good_is_there)
            found = await numbers(bootstrap)
            assert [found[large], found[unknown]] == [[1], [1]]
            errors = await connection.fetch(
                "SELECT last_error FROM outbox WHERE attempts > 0 ORDER BY position"
            )
            assert "MessageSizeTooLarge" in errors[0]["last_error"]
            assert Billed.TOPIC in errors[1]["last_error"]
            await connection.execute("DELETE FROM outbox WHERE attempts > 0")
            await drained(database)
    found = await numbers(bootstrap)
    assert [found[large], found[unknown]] == [[1, 3], [1, 3]]
