"""What benchmarks do with Kafka from outside: preload a topic, watch another one grow."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from streams.layout import partition_of
from streams.runtime.topics import KafkaTopics
from streams.topics import TopicSpec

SAMPLE_INTERVAL = 0.02
#: A topic that has not grown for this long is taken to be complete, in seconds.
SETTLED_AFTER = 4.0


@dataclass(frozen=True, slots=True)
class Growth:
    """How a topic grew: the rate over its growth, and how long that took in seconds."""

    per_second: float
    seconds: float


async def preload(bootstrap: str, topic: str, *, partitions: int, events: int, keys: int) -> None:
    """Create a topic, and the one of its outputs, and fill it with JSON events that carry their ids."""
    async with KafkaTopics(bootstrap) as topics:
        await topics.create([TopicSpec(name, partitions, 1, {}) for name in (topic, f"{topic}.counted")])
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1 << 19, linger_ms=5)
    await producer.start()
    try:
        batches = [producer.create_batch() for _ in range(partitions)]
        for i in range(events):
            key = b"k%d" % (i % keys)
            record = {
                "timestamp": int(time.time() * 1000),
                "key": key,
                "value": orjson.dumps({"k": key.decode(), "i": i}),
                "headers": [("ce_id", b"%d" % i), ("ce_source", b"bench")],
            }
            partition = partition_of(key, partitions)
            if batches[partition].append(**record) is None:
                await producer.send_batch(batches[partition], topic, partition=partition)
                batches[partition] = producer.create_batch()
                batches[partition].append(**record)
        for partition, batch in enumerate(batches):
            await producer.send_batch(batch, topic, partition=partition)
        await producer.flush()
    finally:
        await producer.stop()


async def watch_growth(bootstrap: str, topic: str, *, partitions: int, events: int, timeout: float) -> Growth:
    """Sample the topic's end until it has `events` and grows no more; the rate from first to last growth.

    Markers of transactions are in the end offset too, so the share of the growth that was seen counts, not
    the offset itself. Raises TimeoutError after `timeout` seconds.
    """
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    try:
        tps = [TopicPartition(topic, partition) for partition in range(partitions)]
        samples: list[tuple[float, int]] = []
        async with asyncio.timeout(timeout):
            while not _complete(samples, events):
                end = sum((await consumer.end_offsets(tps)).values())
                if end and (not samples or end != samples[-1][1]):
                    samples.append((time.perf_counter(), end))
                await asyncio.sleep(SAMPLE_INTERVAL)
    finally:
        await consumer.stop()
    (first, began), (last, ended) = samples[0], samples[-1]
    return Growth(events * (1 - began / ended) / (last - first), last - first)


def _complete(samples: list[tuple[float, int]], events: int) -> bool:
    return bool(samples) and samples[-1][1] >= events and time.perf_counter() - samples[-1][0] > SETTLED_AFTER


async def distinct_ids(bootstrap: str, topic: str, *, partitions: int) -> int:
    """How many different events a topic has, of all that are committed."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    await consumer.start()
    try:
        tps = [TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        ends = await consumer.end_offsets(tps)
        ids: set[int] = set()
        while any([await consumer.position(tp) < ends[tp] for tp in tps]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                ids.update(orjson.loads(record.value)["i"] for record in records)
        return len(ids)
    finally:
        await consumer.stop()
