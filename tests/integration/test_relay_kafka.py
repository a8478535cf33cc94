"""A row that a real Kafka refuses, and a polling relay. For both relays: `scenarios/test_relays.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from streams.local import Stack
from streams.ports import Record
from streams.postgres import Database
from streams.postgres.outbox import Outbox
from streams.runtime.client import TopicReader
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
