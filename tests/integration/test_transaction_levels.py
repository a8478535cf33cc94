"""Clusters whose finalized `transaction.version` is not the newest: the producer speaks as they do."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streams.errors import Fenced
from streams.kafka.clients import KafkaOptions, Producer
from streams.kafka.cluster import KafkaCluster
from streams.kafka.topics import KafkaTopics
from streams.kafka.transactions.batches import pack
from streams.kafka.transactions.requests import V1, V2, TransactionProtocol, produce
from streams.local import Stack, artifacts, local_stack
from streams.local.kafka import BrokerNode, ClusterFiles, Jvm
from streams.local.state import VarDir
from streams.ports import TP, Outgoing, TopicSpec

pytestmark = pytest.mark.stack

GROUP = "group"
COMMITTED, FENCED = [Outgoing(b"k", b"committed", [])], [Outgoing(b"k", b"fenced", [])]


@dataclass(frozen=True)
class FormattedFor(Jvm):
    """Formats storage for a level of the feature."""

    level: int = 0

    def command(self, main_class: str, *arguments: str) -> list[str]:
        level = ("--feature", f"transaction.version={self.level}") if "format" in arguments else ()
        return super().command(main_class, *arguments, *level)


@pytest.fixture(
    params=[0, pytest.param(1, marks=pytest.mark.verify("a level below the second: 0 covers it"))]
)
def kafka_of_level(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    jars = artifacts.class_path(artifacts.kafka(), lambda _: None)
    jvm = FormattedFor(artifacts.java(), jars, level=request.param)
    ClusterFiles(VarDir(tmp_path).kafka, jvm, [BrokerNode(1, 1, 2)]).prepare()
    with local_stack(tmp_path) as stack:
        yield stack


async def protocol_of(stack: Stack) -> TransactionProtocol:
    cluster = KafkaCluster(stack.bootstrap)
    producer = cluster.transactions("asks")
    await producer.start()
    await producer.discard()
    await cluster.close()
    return producer._protocol  # type: ignore[attr-defined]


async def test_a_cluster_of_a_low_level_hears_the_first_version(kafka_of_level: Stack) -> None:
    assert await protocol_of(kafka_of_level) is V1
    cluster = KafkaCluster(kafka_of_level.bootstrap, KafkaOptions())
    async with KafkaTopics(kafka_of_level.bootstrap) as topics:
        await topics.create([TopicSpec("topic", 3, 1)])
    tps = [TP("topic", partition) for partition in range(3)]
    first, second = (cluster.transactions("id") for _ in range(2))
    await first.start()
    for round_ in range(1, 4):
        await first.begin()
        ends, _ = await asyncio.gather(
            first.send(dict.fromkeys(tps, COMMITTED)), first.send_offsets({tps[0]: round_}, GROUP)
        )
        assert set(ends.values()) == {2 * round_ - 1}  # each transaction left its marker
        await first.commit()
    await first.begin()
    await first.send(dict.fromkeys(tps, FENCED))
    await second.start()
    with pytest.raises(Fenced):
        await first.commit()
    assert await cluster.committed(GROUP, tps) == {tps[0]: 3}
    await first.discard()
    await second.discard()
    await cluster.close()


@pytest.mark.promise("late-writes")
@pytest.mark.parametrize(("kind", "code"), [("newest", 47), ("v1", 0)])
async def test_late_requests_reach_the_first_version_alone(kafka: Stack, kind: Producer, code: int) -> None:
    """A request of a transaction that has ended, held up on its way until the next one writes there, too."""
    tp = TP(f"late-{kind}", 0)
    async with KafkaTopics(kafka.bootstrap) as topics:
        await topics.create([TopicSpec(tp.topic, 1, 1)])
    options = KafkaOptions(producer=kind)
    cluster = KafkaCluster(kafka.bootstrap, options)
    producer: Any = cluster.transactions(tp.topic)
    await producer.start()
    await producer.begin()
    await producer.send({tp: COMMITTED})
    owner = producer._sequences.owner
    await producer.commit()
    await producer.begin()
    await producer.send({tp: COMMITTED})
    (late,) = pack(tp, [Outgoing(b"k", b"late", [])], 0, options, options.max_batch)
    batch = late.build(owner, producer._sequences.next(tp))
    call = produce(producer._protocol, owner, {tp: batch}, 5.0)
    answer = await producer._link.ask(producer._link.leader(tp), call)
    assert answer[tp].code == code
    # Two records, the marker between them, and the late one where it was taken.
    assert await cluster.end_offsets([tp]) == {tp: 3 + (code == 0)}
    await producer.discard()
    await cluster.close()


async def test_the_newest_cluster_is_spoken_to_in_the_second_version(kafka: Stack) -> None:
    assert await protocol_of(kafka) is V2
