"""Runs a reshard on Kafka, with its topics and connections. `engine.life.positions.reshard` has the steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from streams.brokers import Brokers
from streams.engine.life.positions.declared import DEAD_LETTER_ROOM
from streams.engine.life.positions.reshard import Reshard, Stage
from streams.kafka.clients import KafkaOptions
from streams.kafka.cluster import KafkaCluster
from streams.kafka.topics import KafkaTopics
from streams.model.layout import Layout, dead_letter_topic
from streams.ports import TopicSpec


class ReshardPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a reshard: its stage, the tables to copy, and the topics that get more partitions."""

    progress: Stage
    tables: list[str]
    topics: list[str]


class Resharding:
    """Creates the topics of the new application like those of the old one, and runs a reshard."""

    def __init__(
        self,
        brokers: Brokers,
        old: Layout,
        new: Layout,
        sources: list[str],
        messages: list[str],
        *,
        max_record: int,
    ) -> None:
        """`sources` are the topics that the application handles, `messages` these and those that it sends to.
        `max_record` is in bytes.
        """
        self._brokers = brokers
        self._old, self._new = old, new
        self._sources, self._messages = sources, messages
        self._options = KafkaOptions(max_batch=max_record, max_record=max_record + DEAD_LETTER_ROOM)

    async def plan(self) -> ReshardPlan:
        """Return the plan. Raises ReshardRefused, also if messages are left to handle."""
        async with self._reshard() as reshard, KafkaTopics(self._brokers, self._options) as topics:
            progress = await reshard.progress()
            if progress is Stage.NEW:
                await reshard.check_drained()
            found = await topics.describe(self._messages)
            fewer = [name for name, topic in found.items() if topic.partitions < self._new.partitions]
            return ReshardPlan(progress=progress, tables=await reshard.tables(), topics=sorted(fewer))

    async def run(self, report: Callable[[str], None]) -> dict[str, int]:
        """Run the reshard, or what is left of it. Returns the number of rows by table; empty if it is already
        done. `report` is called with a text about each step.
        """
        async with self._reshard() as reshard, KafkaTopics(self._brokers, self._options) as topics:
            if await reshard.progress() is Stage.DONE:
                return {}
            await self._make_topics(topics, await reshard.tables())
            await reshard.begin()
            await reshard.copy(lambda count: report(f"{count:,} records copied"))
            report("comparing")
            counts = await reshard.verify()
            await reshard.settle()
            report("adding partitions to message topics")
            await topics.grow(self._messages, self._new.partitions)
            await reshard.end()
            return counts

    async def cancel(self) -> None:
        """Open the old application again, unless the copy is complete. Raises ReshardRefused."""
        async with self._reshard() as reshard:
            await reshard.cancel()

    async def _make_topics(self, topics: KafkaTopics, tables: list[str]) -> None:
        old, new = self._old, self._new
        names = {old.changelog(table): (new.changelog(table), new.partitions) for table in tables}
        names |= {
            old.operations: (new.operations, new.partitions),
            old.operations_log: (new.operations_log, 1),
            old.announcements: (new.announcements, 1),
        }
        # If a topic has a repartition topic, a dead letter topic with the application's id tells that it
        # belongs to another application. So create these dead letter topics first (docs/adr/0076).
        by_id = {
            dead_letter_topic(topic, old.app_id): (dead_letter_topic(topic, new.app_id), 1)
            for topic in self._sources
        }
        names |= {old.repartition(topic): (new.repartition(topic), new.partitions) for topic in self._sources}
        for some in (by_id, names):
            found = await topics.describe(some)
            await topics.create(
                TopicSpec(some[name][0], some[name][1], topic.replication, topic.config)
                for name, topic in found.items()
            )

    @asynccontextmanager
    async def _reshard(self) -> AsyncIterator[Reshard]:
        cluster = KafkaCluster(self._brokers, self._options)
        reshard = Reshard(self._old, self._new, self._sources, cluster)
        try:
            yield reshard
        finally:
            await reshard.close()
            await cluster.close()
