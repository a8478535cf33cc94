"""Writes rows of the outbox to Kafka: an idempotent producer, whole batches of a partition at a time."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from aiokafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from streams.brokers import Bootstrap
from streams.errors import ClusterUnavailable, TooLarge
from streams.host.announcements import announcement
from streams.kafka.clients import KafkaOptions
from streams.model.layout import partition_of
from streams.ports import TP
from streams.postgres.outbox import OutboxRow
from streams.postgres.relay import Isolated, Published
from streams.postgres.relay.outbox_producer import REFUSED, IdempotentProducer, Producing


class KafkaPublisher:
    """One producer for all rows, and another for those that are written one by one.

    After an error it is unknown what a producer will still write, and a broker that has missed a batch takes
    none of the later ones: it is cut off and another one started.

    Arguments:
        bootstrap: brokers, host:port,...
        announcements: the topic by which readers learn schemas.
        options: its `max_batch` is the largest record, too.
    """

    def __init__(self, bootstrap: Bootstrap, announcements: str, options: KafkaOptions | None = None) -> None:
        self._announcements = announcements
        options = options or KafkaOptions()
        self._main = Producing(bootstrap, options)
        self._alone = Producing(bootstrap, options)
        self._isolating = asyncio.Lock()

    async def announce(self, schemas: Mapping[str, str]) -> None:
        """As the port says."""
        tp = TP(self._announcements, 0)
        timestamp = int(time.time() * 1000)
        async with self._main.producer() as producer:
            if schemas and await producer.partitions(tp.topic) is None:
                raise ClusterUnavailable(
                    f"there is no topic {tp.topic} yet: a worker makes it when it starts"
                )
            for fingerprint, text in schemas.items():
                key, value = announcement(fingerprint, text)
                batch = producer.new_batch()
                batch.append(timestamp=timestamp, key=key, value=value)
                await producer.send(batch, tp)

    async def publish(self, rows: Sequence[OutboxRow]) -> Published:
        """As the port says."""
        done = Published([], [], "")
        async with self._main.producer() as producer:
            by_partition = await _by_partition(producer, rows, done.suspects)
            # Every one is waited for: what has been written is known then, and need not be written again.
            doubts = await asyncio.gather(
                *(producer.write(tp, some, done) for tp, some in by_partition.items())
            )
            doubt = next(filter(None, doubts), "")
            if doubt:
                self._main.discard(producer)
            elif producer.is_spoiled:
                self._main.retire(producer)
        return done._replace(doubt=doubt)

    async def isolate(self, rows: Sequence[OutboxRow]) -> Isolated:
        """As the port says."""
        done = Isolated([], [])
        held: set[tuple[str, str]] = set()
        whole: dict[str, str] = {}  # topics that are refused for any row
        async with self._isolating:
            for row in rows:
                if row.aggregate in held:
                    continue
                why = whole.get(row.topic) or await self._alone_refused(row, whole)
                if why:
                    held.add(row.aggregate)
                    done.refused.append((row, why))
                else:
                    done.written.append(row)
        return done

    async def _alone_refused(self, row: OutboxRow, whole: dict[str, str]) -> str:
        """Write a row; why it is refused, or empty."""
        async with self._alone.producer() as producer:
            count = await producer.partitions(row.topic)
            if count is None:
                whole[row.topic] = f"the cluster has no topic {row.topic}, or does not let this client see it"
                return whole[row.topic]
            try:
                batch, _ = producer.pack([row])
                await producer.send(batch, TP(row.topic, partition_of(row.aggregate_id.encode(), count)))
            except TooLarge as error:
                return str(error)
            except REFUSED as error:
                self._alone.discard()
                why = f"{type(error).__name__}: {error}"
                if isinstance(error, (TopicAuthorizationFailedError, UnknownTopicOrPartitionError)):
                    whole[row.topic] = why
                return why
        return ""

    def stop(self) -> None:
        """As the port says."""
        self._main.discard()
        self._alone.discard()

    async def close(self) -> None:
        """As the port says."""
        self.stop()
        await self._main.closed()
        await self._alone.closed()


async def _by_partition(
    producer: IdempotentProducer, rows: Sequence[OutboxRow], suspects: list[OutboxRow]
) -> dict[TP, list[OutboxRow]]:
    """Rows by where they belong; suspect are those of topics that the cluster does not have."""
    counts = {topic: await producer.partitions(topic) for topic in {row.topic for row in rows}}
    found: dict[TP, list[OutboxRow]] = defaultdict(list)
    for row in rows:
        count = counts[row.topic]
        if count is None:
            suspects.append(row)
        else:
            found[TP(row.topic, partition_of(row.aggregate_id.encode(), count))].append(row)
    return found
