"""What the projection of orders cannot read becomes a dead letter; a real PostgreSQL and a real Kafka."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer

from agents.api.projection import END_EVENTS, Projection
from agents.messages import OrderConfirmed
from agents.settings import OrderSettings
from streams.errors import ClusterUnavailable
from streams.kafka.clients import KafkaOptions
from streams.kafka.records.batches import Plain
from streams.kafka.topics import KafkaTopics
from streams.model.layout import dead_letter_topic
from streams.ports import Record
from streams.postgres import Database
from streams.units import DAY
from tests.integration.told_orders import confirmed
from tests.postgres import until
from tests.relays import relayed, with_topics
from tests.waiting import eventually_async

TOPIC = OrderConfirmed.TOPIC
LETTERS = dead_letter_topic(TOPIC)


pytestmark = pytest.mark.usefixtures("orders_url")


@pytest.fixture
async def bootstrap(guarded: str) -> str:
    """Not of the broker that all share: lanes' tests have topics of these names there, cut otherwise."""
    return await with_topics(guarded, *(kind.TOPIC for kind in END_EVENTS))


async def send(bootstrap: str, *records: Plain) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for each in records:
            headers = list(each.headers)
            await producer.send_and_wait(TOPIC, each.value, key=each.key, headers=headers, partition=0)


@asynccontextmanager
async def projecting(projection: Projection) -> AsyncIterator[None]:
    running = asyncio.create_task(projection.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


async def letters_of(bootstrap: str, group: str) -> list[Record]:
    found = await relayed(bootstrap, LETTERS)
    return [each for each in found if dict(each.headers)["dlq-consumer-group"] == group.encode()]


@pytest.mark.promise("projection")
async def test_a_record_that_nobody_can_read_is_a_dead_letter(database: Database, bootstrap: str) -> None:
    app_id = f"shop-{uuid4().hex[:8]}"
    name = f"o-{uuid4()}"
    good = confirmed(name)
    nameless, garbled = good._replace(headers=()), good._replace(key=b"g", value=b"\xff\x00")
    await send(bootstrap, nameless, garbled, good)
    projection = Projection(OrderSettings(bootstrap=bootstrap, app_id=app_id), database)
    async with projecting(projection):
        await until(database, "SELECT status = 'confirmed' FROM orders WHERE id = $1", name)
        await eventually_async(lambda: not projection.standing, "the projection stands well")
    assert projection.skipped == 2
    letters = await letters_of(bootstrap, f"{app_id}-orders-projection")
    assert [(each.key, each.value) for each in letters] == [(name.encode(), good.value), (b"g", b"\xff\x00")]
    said = [dict(each.headers) for each in letters]
    assert [each["dlq-source-topic"].decode() for each in said] == [TOPIC, TOPIC]
    assert int(said[1]["dlq-source-offset"]) == int(said[0]["dlq-source-offset"]) + 1
    assert said[0]["dlq-error-type"] == b"MissingHeader"
    assert said[1]["ce_id"] == f"{name}:confirmed".encode()  # with the headers that it came with
    async with KafkaTopics(bootstrap) as topics:
        described = (await topics.describe([LETTERS]))[LETTERS]
    assert described.config["retention.ms"] == str(int(14 * DAY) * 1000)
    # The next one of the group begins behind them.
    next_one = Projection(OrderSettings(bootstrap=bootstrap, app_id=app_id), database)
    async with projecting(next_one):
        await eventually_async(lambda: not next_one.standing, "the next one stands well")
    assert next_one.skipped == 0


@pytest.mark.promise("projection")
async def test_nothing_is_passed_while_its_dead_letter_cannot_be_written(database: Database) -> None:
    settings = OrderSettings(bootstrap="127.0.0.1:1")
    projection = Projection(settings, database, options=KafkaOptions(metadata_timeout=0.5))
    good = confirmed("o-1")
    with pytest.raises(ClusterUnavailable):
        await projection.take([good._replace(headers=()), good._replace(offset=1)])
    assert projection.skipped == 0
    assert await database.pool.fetchval("SELECT count(*) FROM orders") == 0


async def test_the_largest_record_fits_among_dead_letters(database: Database, bootstrap: str) -> None:
    app_id = f"shop-{uuid4().hex[:8]}"
    settings = OrderSettings(bootstrap=bootstrap, app_id=app_id)
    largest = Plain(TOPIC, 0, 0, 0, b"k", b"\xff" * (settings.max_message_bytes - 200), ())
    await Projection(settings, database).take([largest])
    (letter,) = await letters_of(bootstrap, f"{app_id}-orders-projection")
    assert letter.value == largest.value
