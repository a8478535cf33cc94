"""A real broker keeps the session of a reader, whatever it forgets."""

import time
from collections.abc import AsyncIterator
from itertools import count
from math import inf

import pytest
from aiokafka import AIOKafkaProducer

from streams.local import Stack
from streams.ports import TP
from streams.positions.declared import TopicSpec
from streams.runtime.cluster import KafkaCluster
from streams.runtime.kafka.fetch_sessions import FetchSession
from streams.runtime.kafka.reader import KafkaReader
from streams.runtime.kafka.topics import KafkaTopics

PARTITIONS = 12
_numbers = count(time.time_ns())


class Reading:
    def __init__(self, stack: Stack, topic: str, reader: KafkaReader) -> None:
        self._stack = stack
        self._topic = topic
        self.reader = reader
        self.read: list[bytes] = []

    @property
    def session(self) -> FetchSession:
        (leader,) = self.reader._fetcher._leaders.values()
        return leader.session

    async def write(self, value: bytes, partition: int = 0) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self._stack.bootstrap) as producer:
            await producer.send_and_wait(self._topic, value, partition=partition)

    async def until(self, value: bytes) -> None:
        while value not in self.read:
            for batch in await self.reader.fetch(max_records=100, timeout=0.5):
                self.read += [record.value or b"" for record in batch.records]


@pytest.fixture
async def reading(kafka: Stack) -> AsyncIterator[Reading]:
    topic = f"sessions-{next(_numbers)}"
    async with KafkaTopics(kafka.bootstrap) as topics:
        await topics.create([TopicSpec(topic, PARTITIONS, 1)])
    cluster = KafkaCluster(kafka.bootstrap)
    reader = await cluster.reader()
    await reader.assign({TP(topic, partition): 0 for partition in range(PARTITIONS)})
    yield Reading(kafka, topic, reader)
    await reader.close()
    await cluster.close()


@pytest.mark.stack
async def test_a_real_broker_keeps_the_session(reading: Reading) -> None:
    for number in range(PARTITIONS):
        await reading.write(b"%d" % number, number)
        await reading.until(b"%d" % number)
    assert reading.session.id
    assert reading.session.incremental >= PARTITIONS - 1  # all but the first request
    assert len(reading.read) == PARTITIONS
    assert reading.reader.silence() < inf


@pytest.mark.stack
async def test_a_session_lost_by_the_broker_reads_nothing_twice(reading: Reading) -> None:
    await reading.write(b"before")
    await reading.until(b"before")
    lost = reading.session.id
    reading.session.id = lost + 1
    await reading.write(b"after", 3)
    await reading.until(b"after")
    await reading.write(b"and after that", 4)
    await reading.until(b"and after that")
    assert reading.session.id not in (0, lost + 1)
    assert reading.read == [b"before", b"after", b"and after that"]
