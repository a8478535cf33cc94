"""Writes dead letters for a consumer group outside the lanes, at least once, before the group commits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Iterable, Sequence
from typing import TypeAlias

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams.brokers import Bootstrap
from streams.engine.life.positions.declared import DEAD_LETTER_ROOM, dead_letter_spec
from streams.engine.waiting.dead_letters.record import dead_letter
from streams.errors import ClusterUnavailable
from streams.kafka.clients import KafkaOptions, deliver_within
from streams.kafka.topics import KafkaTopics
from streams.model.application import LaneOptions
from streams.model.layout import dead_letter_topic
from streams.ports import Record

log = structlog.get_logger(__name__)

#: Seconds that a batch may wait for its broker. A leader election takes less.
_DELIVERY_TIMEOUT = 20.0

#: A record that cannot be handled, and why.
Unreadable: TypeAlias = tuple[Record, BaseException]


class DeadLetterWriter:
    """Writes dead letters beside the topics of their records, and creates missing dead letter topics.

    Arguments:
        bootstrap: brokers, as host:port,...
        group: the group that could not handle the records.
        lane_options: maximum record size, and retention of dead letters.
        options: options for the Kafka clients.
        app_id, own: the application of the group, and its own topics. Dead letters of any other topic go to
            a topic named with the application's id, like those of its lanes (docs/adr/0076).
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        group: str,
        lane_options: LaneOptions,
        options: KafkaOptions | None = None,
        *,
        app_id: str,
        own: Container[str],
    ) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._app_id, self._own = app_id, own
        self._lane_options = lane_options
        self._options = options or KafkaOptions()
        self._known: set[str] = set()

    async def write(self, letters: Sequence[Unreadable]) -> None:
        """Write dead letters, and return once all in-sync replicas have them. After an error, some may have
        been written. If they are written again, both copies name the same source topic, partition and offset.

        Raises ClusterUnavailable, and TopicMismatch if the cluster refuses to create a topic.
        """
        if not letters:
            return
        await self._require({record.topic for record, _ in letters})
        limit = self._lane_options.max_message_bytes
        producer = AIOKafkaProducer(
            **self._options.connection(self._bootstrap),
            enable_idempotence=True,
            acks="all",
            max_request_size=limit + DEAD_LETTER_ROOM,
        )
        deliver_within(producer, _DELIVERY_TIMEOUT)
        try:
            await producer.start()
            try:
                await asyncio.gather(*[await self._send(producer, *letter) for letter in letters])
            finally:
                await producer.stop()
        except (KafkaError, OSError, TimeoutError) as error:
            raise ClusterUnavailable(f"dead letters of {self._group} were not written: {error!r}") from error

    async def _send(
        self, producer: AIOKafkaProducer, record: Record, error: BaseException
    ) -> asyncio.Future[object]:
        letter = dead_letter(
            record,
            error,
            group=self._group,
            handler=self._group,
            now=time.time(),
            limit=self._lane_options.max_message_bytes,
        )
        sent: asyncio.Future[object] = await producer.send(
            self._beside(record.topic), letter.value, key=letter.key, headers=list(letter.headers)
        )
        return sent

    async def _require(self, sources: Iterable[str]) -> None:
        missing = set(sources) - self._known
        if not missing:
            return
        async with KafkaTopics(self._bootstrap, self._options) as topics:
            found = await topics.describe([*missing, *map(self._beside, missing)])
            specs = [
                dead_letter_spec(
                    self._beside(topic), self._lane_options, replication=found[topic].replication
                )
                for topic in missing
                if self._beside(topic) not in found
            ]
            await topics.create(specs)
        self._known |= missing
        for spec in specs:
            log.info("dead_letter_topic_created", topic=spec.name)

    def _beside(self, topic: str) -> str:
        return dead_letter_topic(topic, "" if topic in self._own else self._app_id)
