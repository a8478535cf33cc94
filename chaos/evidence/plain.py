"""The cluster by a client that shares no code with the library, nor with the one it is built on: librdkafka.

The checker reads by it where the library's own reader must not be the only source.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined] # it exports the second only in fact
    AdminClient,
    OffsetSpec,
)

from chaos.evidence.decoding import ID
from demo.findings import Finding, finding
from streams.ports import TP

_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call] # it has no types
_ANSWERS_WITHIN = 30.0
_AT_ONCE, _STEP = 5_000, 0.2


class TopicCount(NamedTuple):
    """The committed records of a topic, and how many different message ids they have."""

    records: int
    ids: int


class Counting:
    """Counts records by topic as they are read."""

    def __init__(self) -> None:
        self._records: Counter[str] = Counter()
        self._ids: dict[str, set[Any]] = defaultdict(set)

    def add(self, topic: str, headers: Any) -> None:
        """Another record, and its headers: pairs of a name and a value."""
        self._records[topic] += 1
        self._ids[topic].add(dict(headers).get(ID) or b"")

    def counts(self) -> dict[str, TopicCount]:
        """By topic; one without records is left out."""
        return {topic: TopicCount(records, len(self._ids[topic])) for topic, records in self._records.items()}


class PlainClient:
    """Every method blocks, and raises KafkaException when the cluster does not answer in time."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def partitions(self) -> list[TP]:
        """Every partition of every topic, the brokers' own included."""
        topics = self._admin.list_topics(timeout=_ANSWERS_WITHIN).topics
        return [TP(name, number) for name, topic in topics.items() for number in topic.partitions]

    def ends(self, tps: Iterable[TP], *, committed: bool = False) -> dict[TP, int]:
        """High watermarks; with `committed`, up to where no transaction is open."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(*tp): _LATEST for tp in tps}
        answers = self._admin.list_offsets(wanted, isolation_level=level, request_timeout=_ANSWERS_WITHIN)
        return {TP(tp.topic, tp.partition): answer.result().offset for tp, answer in answers.items()}

    def positions(self, group: str) -> dict[TP, int]:
        """What a group has committed."""
        wanted = [ConsumerGroupTopicPartitions(group)]
        answers = self._admin.list_consumer_group_offsets(wanted, request_timeout=_ANSWERS_WITHIN)
        found = answers[group].result().topic_partitions
        return {TP(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def count(self, topics: Collection[str]) -> dict[str, TopicCount]:
        """Read these from beginning to end, committed records only."""
        tps = [tp for tp in self.partitions() if tp.topic in topics]
        counting, left = Counting(), set(tps)
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "counts-again",  # it joins none: the partitions are assigned
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.assign([TopicPartition(*tp, OFFSET_BEGINNING) for tp in tps])
            moved = time.monotonic()
            while left:
                if time.monotonic() - moved > _ANSWERS_WITHIN:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{len(left)} partitions left"))
                for record in consumer.consume(_AT_ONCE, timeout=_STEP):  # it waits for that many, or so long
                    moved = time.monotonic()
                    if (error := record.error()) is None:
                        counting.add(record.topic() or "", record.headers() or ())
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left.discard(TP(record.topic() or "", record.partition() or 0))
                    else:
                        raise KafkaException(error)
        finally:
            consumer.close()
        return counting.counts()


def judge_counts(first: Mapping[str, TopicCount], second: Mapping[str, TopicCount]) -> Finding:
    """Whether the library's reader and the plain client have found as much in every topic."""
    none = TopicCount(0, 0)
    wrong = {
        "topics with another count": [
            f"{topic}: {first.get(topic, none)[:]} and {second.get(topic, none)[:]} records and ids"
            for topic in sorted(first.keys() | second.keys())
            if first.get(topic, none) != second.get(topic, none)
        ]
    }
    says = f"{sum(each.records for each in second.values()):,} records in {len(second):,} topics"
    return finding("two clients that share no code count the same", wrong, says)
