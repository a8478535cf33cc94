"""What librdkafka writes, on which most clients of other languages stand, is handled like our own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from lane_checker import check, check_store, dead_letters
from lane_kafka import KafkaWorld
from lane_scenes import counter, some, stopped
from lane_worlds import Post, closing

from streams.local import Stack
from streams.ports import TP
from streams.testing.batches import batch, record
from tests.raw_kafka import produced

pytestmark = pytest.mark.promise("compression", "with librdkafka")

LATIN = "größe".encode("latin-1")


@pytest.fixture
async def world(kafka: Stack, tmp_path: Path) -> AsyncIterator[KafkaWorld]:
    async with closing(KafkaWorld(kafka.bootstrap, tmp_path)) as world:
        assert isinstance(world, KafkaWorld)
        yield world


def write(bootstrap: str, codec: str, posts: list[Post]) -> None:
    """Produce in few batches, within what the topic takes, and wait until the broker has all."""
    options = {"compression.type": codec, "linger.ms": 50, "batch.size": 15_000}
    producer = Producer({"bootstrap.servers": bootstrap, **options})
    refused: list[object] = []
    for post in posts:
        producer.produce(
            post.topic,
            post.value,
            post.key,
            partition=post.partition,
            headers=list(post.headers),
            on_delivery=lambda error, _: error and refused.append(error),
        )
    assert (producer.flush(20), refused) == (0, [])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_messages_of_another_client_are_handled_in_each_codec(world: KafkaWorld, codec: str) -> None:
    work = await counter(world)
    events = [world.event(work, key, i) for key in "abc" for i in range(50)]
    await asyncio.to_thread(write, world.bootstrap, codec, events)
    lane = await world.open()
    await world.until(lambda: lane.handled == len(events))
    await stopped(world, lane, work.source)
    assert lane.lane.reopened == 0
    await check(world, work, events)
    await check_store(world)
    assert await dead_letters(world, work.source) == []


async def test_what_is_damaged_between_another_clients_messages_harms_none(world: KafkaWorld) -> None:
    """It stands for a client that sends headers in another encoding than UTF-8: librdkafka takes any bytes,
    its Python form does not.
    """
    work = await counter(world)
    events = some(world, work, range(20), "a")
    await asyncio.to_thread(write, world.bootstrap, "zstd", events[:10])
    bad = world.event(work, "a", 99)
    named = [*bad.headers, (LATIN, b"x")]
    raw = batch([record(0, bad.key, bad.value, named)], codec="snappy")
    await produced(world.bootstrap, TP(bad.topic, bad.partition), raw)
    await asyncio.to_thread(write, world.bootstrap, "lz4", events[10:])
    lane = await world.open()
    await world.until(lambda: lane.handled == len(events) and lane.lane.counters.dead_letters == 1)
    await stopped(world, lane, work.source)
    await check(world, work, events)
    (letter,) = await dead_letters(world, work.source)
    assert letter.key == b"a"
    assert letter.value == record(0, bad.key, bad.value, named)
