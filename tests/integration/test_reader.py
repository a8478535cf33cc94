"""The reader on real Kafka: sessions, connections that close, and other partitions at any time."""

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from itertools import count
from math import inf

import pytest
from aiokafka import AIOKafkaProducer

from streams.kafka.cluster import KafkaCluster
from streams.kafka.fetch_sessions import FetchSession
from streams.kafka.reader import KafkaReader
from streams.kafka.topics import KafkaTopics
from streams.local import Stack
from streams.ports import TP, TopicSpec

PARTITIONS = 12
_numbers = count(time.time_ns())


class Reading:
    def __init__(self, stack: Stack, topic: str, reader: KafkaReader, ids: Mapping[str, str]) -> None:
        self._stack, self._topic, self._ids = stack, topic, ids
        self.reader = reader
        self.read: list[bytes] = []

    @property
    def session(self) -> FetchSession:
        (leader,) = self.reader._fetcher._leaders.values()
        return leader.session

    async def assign(self, partitions: Iterable[int], offset: int = 0) -> None:
        await self.reader.assign({TP(self._topic, each): offset for each in partitions}, self._ids)

    async def write(self, value: bytes, partition: int = 0) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self._stack.bootstrap) as producer:
            await producer.send_and_wait(self._topic, value, partition=partition)

    async def until(self, value: bytes) -> None:
        while value not in self.read:
            for batch in await self.reader.fetch(max_records=100, timeout=0.5):
                self.read += [record.value or b"" for record in batch.records]


@pytest.fixture(params=["by id", "by name"])
async def reading(kafka: Stack, request: pytest.FixtureRequest) -> AsyncIterator[Reading]:
    topic = f"sessions-{next(_numbers)}"
    async with KafkaTopics(kafka.bootstrap) as topics:
        await topics.create([TopicSpec(topic, PARTITIONS, 1)])
    cluster = KafkaCluster(kafka.bootstrap)
    reader = await cluster.reader()
    ids = (await cluster.identity([topic])).topics if request.param == "by id" else {}
    yield Reading(kafka, topic, reader, ids)
    await reader.close()
    await cluster.close()


async def test_a_real_broker_keeps_the_session(reading: Reading) -> None:
    await reading.assign(range(PARTITIONS))
    for number in range(PARTITIONS):
        await reading.write(b"%d" % number, number)
        await reading.until(b"%d" % number)
    assert reading.session.id
    assert reading.session.incremental >= PARTITIONS - 1  # all but the first request
    assert len(reading.read) == PARTITIONS
    assert reading.reader.silence() < inf


async def test_a_session_lost_by_the_broker_reads_nothing_twice(reading: Reading) -> None:
    await reading.assign(range(PARTITIONS))
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


async def test_other_partitions_are_read_while_a_fetch_is_held(reading: Reading) -> None:
    await reading.write(b"first", 1)
    await reading.assign([0])
    for _ in range(2):
        assert await reading.reader.fetch(max_records=10, timeout=0.1) == []
        held = list(reading.reader._client._conns.values())
        await reading.assign([1])
        assert not any(each.connected() for each in held)
        await reading.until(b"first")
        assert reading.read == [b"first"]
        reading.read.clear()
        await reading.assign([0])


async def test_a_connection_that_closes_does_not_end_reading(reading: Reading) -> None:
    await reading.assign(range(PARTITIONS))
    for value in (b"first", b"second"):
        await reading.write(value)
        await reading.until(value)
        for connection in list(reading.reader._client._conns.values()):
            connection.close()
    assert reading.read == [b"first", b"second"]
