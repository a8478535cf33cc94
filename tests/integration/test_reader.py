"""The reader on real Kafka: what may befall it between two assignments."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError

from streams.local import Stack
from streams.ports import TP
from streams.positions.declared import TopicSpec
from streams.runtime.cluster import KafkaCluster
from streams.runtime.kafka.topics import KafkaTopics

_numbers = count()


class Topics(NamedTuple):
    first: TP
    second: TP


@pytest.fixture
async def tps(kafka: Stack) -> Topics:
    number = next(_numbers)
    made = Topics(TP(f"reader-{number}-first", 0), TP(f"reader-{number}-second", 0))
    async with KafkaTopics(kafka.bootstrap) as topics:
        await topics.create(TopicSpec(tp.topic, 1, 1) for tp in made)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        await producer.send_and_wait(made.second.topic, b"second")
    return made


@pytest.fixture
async def reader(kafka: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Closed before what a test has patched is put back."""
    cluster = KafkaCluster(kafka.bootstrap)
    made = await cluster.reader()
    yield made
    await made.close()
    await cluster.close()


def failing(reader: Any, patch: pytest.MonkeyPatch, error: Exception) -> asyncio.Event:
    """Each fetch of the reader fails; set once one has."""
    failed = asyncio.Event()

    async def fail(*_: object, **__: object) -> None:
        failed.set()
        raise error

    patch.setattr(reader._client, "send", fail)
    return failed


async def values(reader: Any) -> list[bytes]:
    while not (batches := await reader.fetch(max_records=10, timeout=0.5)):
        pass
    return [record.value for batch in batches for record in batch.records]


async def test_a_fetch_that_fails_does_not_end_fetching(
    reader: Any, tps: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        failed = failing(reader, broken, KafkaConnectionError("the broker has gone"))
        await reader.assign({tps.second: 0})
        await failed.wait()
    assert await values(reader) == [b"second"]


async def test_other_partitions_are_read_while_a_fetch_is_held(reader: Any, tps: Topics) -> None:
    """`assign` closes the connection that the broker holds the answer back on."""
    await reader.assign({tps.first: 0})
    before = set(reader._client._conns.values())
    assert await reader.fetch(max_records=10, timeout=0.1) == []
    for tp, expected in ((tps.second, [b"second"]), (tps.first, []), (tps.second, [b"second"])):
        await reader.assign({tp: 0})
        assert not expected or await values(reader) == expected
    assert not any(each.connected() for each in before)


@pytest.mark.parametrize("error", [KafkaConnectionError("gone"), RuntimeError("closed")])
async def test_a_reader_whose_fetch_fails_is_closed(
    reader: Any, tps: Topics, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A lane that met an error while it was cut off from the brokers ended for good and without a word. The
    fixture closes the reader.
    """
    failed = failing(reader, monkeypatch, error)
    await reader.assign({tps.first: 0})
    await failed.wait()


async def test_an_unexpected_error_is_raised(
    reader: Any, tps: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(reader, monkeypatch, RuntimeError("broken"))
    await reader.assign({tps.first: 0})
    with pytest.raises(RuntimeError, match="broken"):
        await values(reader)
