"""The reader on real Kafka: what may befall it between two assignments."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError

from streams.errors import ClusterUnavailable
from streams.local import Stack
from streams.ports import TP
from streams.positions.declared import TopicSpec
from streams.runtime.cluster import KafkaCluster
from streams.runtime.kafka.topics import KafkaTopics
from tests.waiting import BOUND, eventually_async

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
async def reader(kafka: Stack) -> AsyncIterator[Any]:
    cluster = KafkaCluster(kafka.bootstrap)
    made = await cluster.reader()
    yield made
    await made.close()
    await cluster.close()


async def until_pending(reader: Any) -> None:
    await eventually_async(lambda: reader._fetcher._pending_tasks, "a fetch is pending", every=0)


def failing(reader: Any, patch: pytest.MonkeyPatch, error: Exception) -> asyncio.Event:
    """Each request of the reader fails; set once one has."""
    failed = asyncio.Event()

    async def fail(*_: object, **__: object) -> None:
        failed.set()
        raise error

    patch.setattr(reader._consumer._client, "send", fail)
    return failed


async def values(reader: Any) -> list[bytes]:
    while not (batches := await reader.fetch(max_records=10, timeout=0.5)):
        pass
    return [record.value for batch in batches for record in batch.records]


async def test_a_fetch_that_fails_does_not_end_fetching(
    reader: Any, tps: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka's fetcher takes a cancelled fetch for its own end, without a word; a fetch that has failed and
    waits before the next can be cancelled. A lane then stood open and read nothing any more.
    """
    with monkeypatch.context() as broken:
        failed = failing(reader, broken, KafkaConnectionError("the broker has gone"))
        await reader.assign({tps.first: 0})
        await failed.wait()
    await reader.assign({tps.second: 0})
    assert await values(reader) == [b"second"]


async def test_a_fetch_that_has_not_begun_does_not_end_fetching(reader: Any, tps: Topics) -> None:
    await reader.assign({tps.first: 0})
    await until_pending(reader)
    await reader.assign({tps.second: 0})
    assert await values(reader) == [b"second"]


@pytest.mark.parametrize("error", [KafkaConnectionError("gone"), RuntimeError("closed")])
async def test_a_reader_whose_fetch_fails_is_closed(
    reader: Any, tps: Topics, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """aiokafka's `stop` awaits what it has cancelled, so that a fetch ended whoever stopped its consumer
    (https://github.com/aio-libs/aiokafka/issues/647): a lane that met an error while it was cut off from the
    brokers ended for good and without a word, as if somebody had cancelled it.
    """
    failed = failing(reader, monkeypatch, error)
    await reader.assign({tps.first: 0})
    await failed.wait()
    await reader.close()


async def test_a_reader_whose_fetch_has_not_begun_is_closed(reader: Any, tps: Topics) -> None:
    await reader.assign({tps.first: 0})
    await until_pending(reader)
    await reader.close()


async def test_a_reader_closed_while_a_fetch_ends_is_closed(
    reader: Any, tps: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetcher swallows a cancellation that comes while it waits for fetches that it has cancelled itself
    (https://github.com/aio-libs/aiokafka/issues/983).
    """
    fetching, ending = asyncio.Event(), asyncio.Event()

    async def end_slowly(*_: object, **__: object) -> None:
        fetching.set()
        try:
            await asyncio.sleep(BOUND * 2)
        finally:
            ending.set()
            await asyncio.sleep(0.1)

    monkeypatch.setattr(reader._consumer._client, "send", end_slowly)
    await reader.assign({tps.first: 0})
    await fetching.wait()
    reader._consumer._subscription.unsubscribe()
    await ending.wait()
    # Not under a timeout: what swallows a cancellation would swallow that one too.
    closing = asyncio.create_task(reader.close())
    closed, _ = await asyncio.wait([closing], timeout=BOUND)
    assert closed


async def test_a_reader_that_has_stopped_fetching_says_so(reader: Any, tps: Topics) -> None:
    await reader.assign({tps.first: 0})
    reader._fetcher._fetch_task.cancel()
    with pytest.raises(ClusterUnavailable, match="stopped fetching"):
        await values(reader)
