"""A real broker loses the newest batches of a log, and gets others in their places: positions say so."""

import signal
import socket
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaProducer

from streams.errors import LogCut
from streams.kafka.clients import KafkaOptions
from streams.kafka.cluster import KafkaCluster
from streams.kafka.topics import KafkaTopics
from streams.local import Stack, local_stack
from streams.ports import TP, Note, Reader, TopicSpec
from tests.raw_kafka import cut_off
from tests.waiting import eventually, eventually_async

pytestmark = pytest.mark.promise("truncated-logs", "on a real broker whose disk loses batches")

GROUP = "cut"
TOPIC = TP("orders", 0)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with local_stack(tmp_path_factory.mktemp("cut"), revive_after=3.0) as stack:
        yield stack


def is_up(stack: Stack) -> bool:
    host, _, port = stack.bootstrap.partition(":")
    try:
        socket.create_connection((host, int(port)), 1.0).close()
    except OSError:
        return False
    return True


async def produce(stack: Stack, count: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=stack.bootstrap) as producer:
        for number in range(count):
            await producer.send_and_wait(TOPIC.topic, b"%d" % number, partition=0)


async def read_to(reader: Reader, end: int) -> None:
    while reader.position(TOPIC) < end:
        await reader.fetch(max_records=100, timeout=1.0)


async def test_a_log_that_was_cut_and_grew_again_is_noticed(stack: Stack) -> None:
    cluster = KafkaCluster(stack.bootstrap, KafkaOptions(metadata_timeout=60.0))
    async with KafkaTopics(stack.bootstrap) as topics:
        await topics.create([TopicSpec(TOPIC.topic, 1, 1, {"cleanup.policy": "delete"})])
    ids = (await cluster.identity([TOPIC.topic])).topics
    await produce(stack, 10)
    reader = await cluster.reader()
    await reader.assign({TOPIC: 0}, ids)
    await read_to(reader, 10)
    epoch = reader.epoch(TOPIC)
    assert epoch >= 0
    assert await cluster.leader_epochs([TOPIC]) == {TOPIC: epoch}
    assert await cluster.epoch_ends({TOPIC: epoch}) == {TOPIC: 10}
    assert await cluster.epoch_ends({TOPIC: epoch + 9}) == {}
    producer = cluster.transactions("cut")
    await producer.start()
    await producer.begin()
    await producer.send_offsets({TOPIC: 10}, GROUP, {TOPIC: Note(epoch, "a text")})
    await producer.commit()
    await producer.discard()

    async def is_noted() -> bool:
        return (await cluster.commits(GROUP, [TOPIC])).get(TOPIC) == (10, epoch, "a text")

    await eventually_async(is_noted, "the position is committed with its note")

    stack.signal_broker(1, signal.SIGKILL)
    eventually(lambda: not is_up(stack), "the broker is gone")
    cut_off(stack.var.kafka, TOPIC, 6)
    assert not is_up(stack)
    eventually(lambda: is_up(stack), "the broker is back")
    await produce(stack, 10)

    assert (await cluster.end_offsets([TOPIC])) == {TOPIC: 16}
    assert (await cluster.leader_epochs([TOPIC]))[TOPIC] > epoch
    assert await cluster.epoch_ends({TOPIC: epoch}) == {TOPIC: 6}
    with pytest.raises(LogCut, match="from offset 6 to 10"):
        await read_to(reader, 16)
    await reader.assign({TOPIC: 10}, ids, {TOPIC: epoch})
    with pytest.raises(LogCut, match="from offset 6 to 10"):
        await read_to(reader, 16)
    await reader.assign({TOPIC: 6}, ids, {TOPIC: epoch})
    await read_to(reader, 16)
    assert reader.epoch(TOPIC) > epoch
    await reader.close()
    await cluster.close()
