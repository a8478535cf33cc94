"""Questions to Kafka about positions and logs, over one connection shared by all lanes of a worker."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import for_code
from aiokafka.protocol.commit import OffsetFetchRequest

from streams.brokers import Bootstrap
from streams.kafka.clients import KafkaOptions, ask, close_within, require_partitions
from streams.kafka.log_epochs import epoch_ends, leader_epochs
from streams.kafka.log_offsets import offsets_at
from streams.kafka.protocol import (
    UNSTABLE,
    DescribeProducers,
    ListTransactions,
    StableOffsets,
    first_open,
    ids_in,
    positions_in,
)
from streams.kafka.topic_ids import TopicIdsRequest, identity_in
from streams.ports import TP, Commit, Identity, OpenTransaction

T = TypeVar("T")
#: What is asked for, as errors name it.
_EPOCHS = "the leader epochs"


class Metadata:
    """Connects at the first question."""

    def __init__(self, bootstrap: Bootstrap, options: KafkaOptions) -> None:
        self._bootstrap = bootstrap
        self._options = options
        self._connecting = asyncio.Lock()
        self._admin: Any = None
        self._consumer: Any = None

    async def committed(self, group: str, tps: Iterable[TP]) -> dict[TP, int]:
        """The group's committed positions; partitions without one are left out."""
        return {tp: commit.offset for tp, commit in (await self.commits(group, tps)).items()}

    async def commits(self, group: str, tps: Iterable[TP]) -> dict[TP, Commit]:
        """The same with their notes."""
        wanted = list(tps)
        if not wanted:
            return {}
        what = f"the committed positions of {group}"
        return await self._ask(what, lambda: self._commits(group, wanted))

    async def _commits(self, group: str, wanted: list[TP]) -> dict[TP, Commit]:
        admin = await self._admin_client()
        coordinator = await admin.find_coordinator(group)
        # Not the admin client's list_consumer_group_offsets: it does not look at the answer's own error,
        # so that a coordinator which is still loading would seem to say that nothing was ever committed.
        answer = await admin._client.send(coordinator, StableOffsets(group, _by_topic(wanted)))
        _check(answer.error_code)
        found = positions_in(answer)
        # Positions that an open transaction moves. A lane that asks has ended its own; others want to know
        # what holds until then.
        if moving := [tp for tp, _, error in found if error == UNSTABLE]:
            request = OffsetFetchRequest(group, list(_by_topic(moving).items()))
            answer = await admin._client.send(coordinator, request)
            _check(answer.error_code)
            found = [each for each in found if each[2] != UNSTABLE]
            found += [
                (TP(topic, n), Commit(at, text=text or ""), error)
                for topic, all_ in answer.topics
                for n, at, text, error in all_
            ]
        for _, _, error in found:
            _check(error)
        return {tp: commit for tp, commit, _ in found if commit.offset >= 0}

    async def identity(self, topics: Iterable[str]) -> Identity:
        """The ids of the cluster and of these topics; topics that it does not have are left out."""
        wanted = sorted(set(topics))

        async def ask() -> Identity:
            admin = await self._admin_client()
            return identity_in(await admin._send_request(TopicIdsRequest(wanted)))

        return await self._ask(f"the ids of {len(wanted)} topics", ask)

    async def begin_offsets(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The first offset still in each log."""
        return await self._log_offsets("beginning_offsets", list(tps))

    async def end_offsets(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The high watermark of each log: open transactions are before it, not behind."""
        return await self._log_offsets("end_offsets", list(tps))

    async def _log_offsets(self, question: str, tps: list[TP]) -> dict[TP, int]:
        if not tps:
            return {}

        async def ask() -> dict[TP, int]:
            consumer = await self._offsets_client()
            # One that does not exist would be waited for until the timeout, without being named.
            await require_partitions(consumer._client, tps, self._options.metadata_timeout)
            offsets = await getattr(consumer, question)([TopicPartition(*tp) for tp in tps])
            return {tp: offsets[TopicPartition(*tp)] for tp in tps}

        return await self._ask(f"the {question} of {len(tps)} partitions", ask)

    async def leader_epochs(self, tps: Iterable[TP]) -> dict[TP, int]:
        """The epoch of each partition's present leader."""
        return await self._of_leaders(leader_epochs, dict.fromkeys(tps, 0), _EPOCHS)

    async def epoch_ends(self, epochs: Mapping[TP, int]) -> dict[TP, int]:
        """Where each log goes on in a later epoch than this one, or its end."""
        return await self._of_leaders(epoch_ends, epochs, _EPOCHS)

    async def offsets_since(self, tps: Iterable[TP], since_ms: int) -> dict[TP, int]:
        """The first offset of each log since a time; those without one are left out."""
        return await self._of_leaders(offsets_at, dict.fromkeys(tps, since_ms), "the offsets since a time")

    async def _of_leaders(
        self,
        question: Callable[[Any, Mapping[TP, int]], Awaitable[dict[TP, int]]],
        wanted: Mapping[TP, int],
        what: str,
    ) -> dict[TP, int]:
        if not wanted:
            return {}

        async def ask() -> dict[TP, int]:
            consumer = await self._offsets_client()
            await require_partitions(consumer._client, list(wanted), self._options.metadata_timeout)
            return await question(consumer._client, wanted)

        return await self._ask(f"{what} of {len(wanted)} partitions", ask)

    async def open_transactions(self, tps: Iterable[TP]) -> dict[TP, OpenTransaction]:
        """The open transaction that began first in each partition; partitions without one are left out."""
        wanted = list(tps)
        if not wanted:
            return {}
        return await self._ask(
            f"the producers of {len(wanted)} partitions", lambda: self._open_transactions(wanted)
        )

    async def _open_transactions(self, tps: list[TP]) -> dict[TP, OpenTransaction]:
        admin = await self._admin_client()
        await require_partitions(admin._client, tps, self._options.metadata_timeout)
        cluster = admin._client.cluster
        by_leader: defaultdict[int, list[TP]] = defaultdict(list)
        for tp in tps:
            by_leader[cluster.leader_for_partition(TopicPartition(*tp))].append(tp)
        found: dict[TP, OpenTransaction] = {}
        for leader, led in by_leader.items():
            found |= first_open(await admin._client.send(leader, DescribeProducers(_by_topic(led))))
        names: dict[int, str] = {}
        unnamed = {each.producer for each in found.values()}
        for broker in cluster.brokers():  # each coordinates transactions of its own
            if unnamed:
                names |= ids_in(await admin._client.send(broker.nodeId, ListTransactions(unnamed)))
                unnamed -= names.keys()
        return {
            tp: each._replace(transactional_id=names.get(each.producer, "")) for tp, each in found.items()
        }

    async def log_range(self, tp: TP) -> tuple[int, int]:
        """First offset and high watermark of a log."""
        return (await self.begin_offsets([tp]))[tp], (await self.end_offsets([tp]))[tp]

    async def close(self) -> None:
        """Let go of the connections; the next question connects again."""
        admin, self._admin = self._admin, None
        consumer, self._consumer = self._consumer, None
        if admin is not None:
            await close_within("the client that asks for topics", admin.close)
        if consumer is not None:
            await close_within("the client that asks for offsets", consumer.stop)

    async def _ask(self, what: str, question: Callable[[], Awaitable[T]]) -> T:
        # A little more than the bound on a missing topic, whose error says more.
        return await ask(what, question, self._options.metadata_timeout + 1)

    async def _admin_client(self) -> Any:
        async with self._connecting:
            if self._admin is None:
                admin = AIOKafkaAdminClient(**self._options.connection(self._bootstrap))
                try:
                    await admin.start()
                except BaseException:
                    await admin.close()
                    raise
                self._admin = admin
            return self._admin

    async def _offsets_client(self) -> Any:
        async with self._connecting:
            if self._consumer is None:
                # read_uncommitted, because read_committed answers with the last stable offset (KAFKA-10167):
                # a recovery up to that one would miss what is committed behind an open transaction.
                consumer = AIOKafkaConsumer(
                    **self._options.connection(self._bootstrap),
                    group_id=None,
                    isolation_level="read_uncommitted",
                    enable_auto_commit=False,
                )
                try:
                    await consumer.start()
                except BaseException:
                    await consumer.stop()
                    raise
                self._consumer = consumer
            return self._consumer


def _by_topic(tps: Iterable[TP]) -> dict[str, list[int]]:
    topics = defaultdict(list)
    for topic, partition in tps:
        topics[topic].append(partition)
    return dict(topics)


def _check(code: int) -> None:
    if code:
        raise for_code(code)
