"""The world of Kafka and RocksDB."""

import asyncio
import time
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from confluent_kafka.admin import AdminClient
from lane_worlds import Post, World

from streams.engine.life.positions.declared import DEAD_LETTER_ROOM, declare
from streams.host.rocksdb.store import RocksStores
from streams.host.topics import ensure_topics
from streams.kafka.clients import KafkaOptions
from streams.kafka.cluster import KafkaCluster
from streams.kafka.topics import KafkaTopics
from streams.model.application import Application
from streams.ports import TP, TopicSpec
from streams.system import SystemClock
from tests.kafka_admin import add_partitions, delete_topic, recreate_topic
from tests.raw_kafka import in_the_log, overwrite, spoiled
from tests.waiting import BOUND


class KafkaWorld(World):
    """One real broker, and RocksDB in `directory`. What is to be spoiled lies below `data`."""

    is_fake = False
    bound, spent = BOUND, staticmethod(time.monotonic)

    def __init__(self, bootstrap: str, directory: Path, data: Path = Path()) -> None:
        super().__init__()
        self.clock = SystemClock()
        self.bootstrap = bootstrap
        self._data = data
        self._directory = directory
        self._machines = count()
        self._producer: Any = None

    async def _start(self) -> None:
        largest = self.app.lane_options.max_message_bytes
        options = KafkaOptions(
            max_batch=largest,
            max_record=largest + DEAD_LETTER_ROOM,
            fetch_wait=0.1,
            transaction_timeout=self.transaction_timeout,
        )
        async with KafkaTopics(self.bootstrap) as topics:
            await topics.create([TopicSpec(topic, number, 1) for topic, number in self.others.items()])
        await ensure_topics(self.app, self.bootstrap, replication=1, options=options)
        self.cluster = KafkaCluster(self.bootstrap, options)
        self._producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=5)
        await self._producer.start()

    def stores(self) -> RocksStores:
        return RocksStores(self._directory / f"machine-{next(self._machines)}")

    async def _tick(self) -> None:
        await asyncio.sleep(0.01)

    async def post(self, *posts: Post) -> None:
        sent = [
            await self._producer.send(
                post.topic, post.value, post.key, partition=post.partition, headers=post.headers
            )
            for post in posts
        ]
        await asyncio.gather(*sent)

    async def post_batch(self, tp: TP, raw: bytes) -> None:
        await in_the_log(self.bootstrap, self._data, tp, raw)

    async def spoil(self, tp: TP, offset: int) -> None:
        overwrite(self._data, tp, offset, spoiled)

    async def truncate(self, tp: TP, before: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            await admin.delete_records({tp: RecordsToDelete(before)})
        finally:
            await admin.close()

    async def recreate(self, topic: str) -> None:
        changelog = topic in self.app.changelogs
        config = {"cleanup.policy": "compact" if changelog else "delete"}
        await recreate_topic(self.bootstrap, topic, self.app.layout.partitions, **config)

    async def delete(self, topic: str) -> None:
        await delete_topic(self.bootstrap, topic)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        await add_partitions(self.bootstrap, topic, partitions)
        await self._producer.client.force_metadata_update()

    async def make_topics(self, app: Application, names: Collection[str]) -> None:
        await ensure_topics(app, self.bootstrap, names, replication=1)

    async def forget_group(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        (deleted,) = admin.delete_consumer_groups([self.name]).values()
        await asyncio.to_thread(deleted.result)

    async def close(self) -> None:
        await super().close()
        if self._producer is not None:
            await self._producer.stop()
            await self.cluster.close()
            await asyncio.to_thread(self._delete_topics)

    def _delete_topics(self) -> None:
        """One broker serves hundreds of tests: it holds files open for each partition that it has."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        ours = {spec.name for spec in declare(self.app, replication=1)} | set(self.others)
        ours &= admin.list_topics(timeout=30).topics.keys()
        for deleted in admin.delete_topics(sorted(ours), request_timeout=30).values() if ours else ():
            deleted.result()
