"""Clients of the application's topics: an idempotent producer, and a read_committed reader of whole topics.

For programs outside the lanes, such as a demo, a checker or a script. They belong to no group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    UnknownTopicOrPartitionError,
)

from streams.brokers import Bootstrap
from streams.engine.staging.keys import QUEUE, split_lane_key
from streams.engine.waiting.queue import WaitingQueue, handler_of, read_queue
from streams.engine.way.topics import unhandled_in
from streams.errors import ChangelogDamaged, ClusterUnavailable, SteadfaustError, TooLarge, TopicMismatch
from streams.kafka.clients import KafkaOptions, deliver_within
from streams.kafka.cluster import KafkaCluster
from streams.kafka.topics import KafkaTopics
from streams.model.claim import VALUE, with_claim
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import Codec, MakeCodec
from streams.model.envelope import (
    FINGERPRINT,
    ID,
    RECORD_OVERHEAD,
    TRACEPARENT,
    headers_size,
    new_headers,
)
from streams.model.layout import LANE, changelog_topic
from streams.model.message import Message
from streams.ports import TP, Damaged, Outgoing, Record
from streams.units import MIB

_LINGER_MS = 5
#: Seconds that a message may wait for its broker; the default of Kafka's own producer.
_DELIVERY_TIMEOUT = 120.0


class Place(NamedTuple):
    """The place of a message in Kafka."""

    topic: str
    partition: int
    offset: int


class Producer:
    """Sends messages from outside the lanes. Use it with `async with`, which flushes at the end.

    `source` is the CloudEvents source, within which ids are unique. With `claims`, payloads that are too
    large for a record, or marked binary, go to the object store; if `claims` is a context manager, the
    producer enters and exits it. `limit` is the largest record in bytes.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        codecs: MakeCodec,
        *,
        source: str,
        options: KafkaOptions | None = None,
        claims: ClaimChecks | AbstractAsyncContextManager[ClaimChecks | None] | None = None,
        limit: int = 1_000_000,
    ) -> None:
        self._connection = (options or KafkaOptions()).connection(bootstrap)
        self._make_codec = codecs
        self._codecs: dict[type[Message], Codec[Any]] = {}
        self._source = source
        self._given_claims = claims
        self._claims: ClaimChecks | None = None
        self._opened = AsyncExitStack()
        self._limit = limit - RECORD_OVERHEAD
        self._failure: SteadfaustError | None = None
        self._producer: Any = None

    async def __aenter__(self) -> Self:
        self._producer = AIOKafkaProducer(
            **self._connection,
            enable_idempotence=True,
            acks="all",
            linger_ms=_LINGER_MS,
            max_request_size=max(self._limit + RECORD_OVERHEAD, MIB),
        )
        deliver_within(self._producer, _DELIVERY_TIMEOUT)
        try:
            claims = self._given_claims
            if isinstance(claims, AbstractAsyncContextManager):
                claims = await self._opened.enter_async_context(claims)
            self._claims = claims
            await self._producer.start()
        except BaseException as error:
            await self._close()
            if isinstance(error, KafkaError):
                why = f"{error}: is STEADFAUST_BOOTSTRAP right, and are the brokers running?"
                raise ClusterUnavailable(f"Kafka cannot be reached: {why}") from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self._close()

    async def _close(self) -> None:
        try:
            await self._producer.stop()
        finally:
            await self._opened.aclose()

    async def send(self, message: Message, *, message_id: str = "", traceparent: str = "") -> None:
        """Queue a message for sending; without an id it gets a new one. The key decides the partition
        (murmur2). A payload for the object store has been written when this returns. `traceparent` is the W3C
        trace context that the message belongs to.

        Raises TooLarge if the message fits into no record, ClusterUnavailable if this or an earlier one was
        not accepted, and BlobsUnavailable if the object store does not accept the payload.
        """
        await self._hand_over(message, message_id, traceparent)

    async def deliver(self, message: Message, *, message_id: str = "", traceparent: str = "") -> Place:
        """Send a message, wait until Kafka has it, and return its place, for `app.table(...).get(after=...)`.
        Raises what `send` raises, or the error of Kafka's client if Kafka does not accept this message.
        """
        record = await (await self._hand_over(message, message_id, traceparent))
        return Place(record.topic, record.partition, record.offset)

    async def _hand_over(self, message: Message, message_id: str, traceparent: str) -> asyncio.Future[Any]:
        self._raise_failure()
        kind = type(message)
        codec = self._codecs.get(kind) or self._codecs.setdefault(kind, self._make_codec(kind, kind.TOPIC))
        headers = new_headers(
            kind.TOPIC, message.key, source=self._source, time=time.time(), message_id=message_id
        )
        headers.append((FINGERPRINT, codec.fingerprint))
        if traceparent:
            headers.append((TRACEPARENT, traceparent.encode()))
        key, value = message.key.encode(), codec.encode(message)
        claims, rest = self._claims, len(key) + headers_size(headers)
        if claims is not None and claims.is_due(len(value), rest, limit=self._limit, binary=kind.BINARY):
            claim = claims.claim(kind.TOPIC, dict(headers)[ID].decode(), value, codec.content_type)
            await claims.check_in(claim, value)
            headers, value = with_claim(headers, claim), VALUE
            rest = len(key) + headers_size(headers)
        if len(value) + rest > self._limit:
            raise TooLarge(self._too_large(kind, message.key, len(value) + rest))
        return await self._send(kind.TOPIC, Outgoing(key, value, headers))

    async def send_record(self, topic: str, record: Outgoing) -> None:
        """Queue a record unchanged, whether it is a message or not. Raises TooLarge, and ClusterUnavailable
        if it or an earlier record was not accepted.
        """
        await self._send(topic, record)

    async def _send(self, topic: str, record: Outgoing) -> asyncio.Future[Any]:
        self._raise_failure()
        try:
            sent: asyncio.Future[Any] = await self._producer.send(
                topic, record.value, key=record.key, headers=record.headers
            )
        except MessageSizeTooLargeError as error:
            raise TooLarge(f"a record for {topic} is over the limit: {error}") from error
        except UnknownTopicOrPartitionError as error:
            missing = (
                f"Kafka has no topic {topic}: start a worker, which creates it, then send the message again"
            )
            raise ClusterUnavailable(missing) from error
        except KafkaError as error:
            raise ClusterUnavailable(f"a message for {topic} was not accepted by Kafka: {error!r}") from error
        sent.add_done_callback(partial(self._done, topic))
        return sent

    async def flush(self) -> None:
        """Wait until Kafka has everything that was sent. Raises TooLarge or ClusterUnavailable if it did not
        accept a record.
        """
        await self._producer.flush()
        self._raise_failure()

    def _too_large(self, kind: type[Message], key: str, size: int) -> str:
        what = f"{kind.__name__} {key!r} makes a record of {size} bytes for {kind.TOPIC}, and"
        limit = f"{what} {self._limit} is the limit (STEADFAUST_MAX_MESSAGE_BYTES, the same on every worker)"
        if self._claims is None:
            return f"{limit}: set STEADFAUST_S3_BUCKET, so that large payloads travel by reference"
        return f"{limit}: its key and headers alone are too large"

    def _done(self, topic: str, sent: asyncio.Future[Any]) -> None:
        if sent.cancelled() or (error := sent.exception()) is None:
            return
        if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
            failure: SteadfaustError = TooLarge(
                f"the brokers refused a message for {topic}: it is over the topic's max.message.bytes. Set"
                " that to STEADFAUST_MAX_MESSAGE_BYTES or more, then send the message again"
            )
        else:
            failure = ClusterUnavailable(f"a message for {topic} was not accepted by Kafka: {error!r}")
        failure.__cause__ = error
        self._failure = self._failure or failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class TopicReader:
    """Reads topics from their beginning, read_committed. Use it with `async with`.

    Raises TopicMismatch on entry if the cluster lacks a topic.
    """

    def __init__(
        self, bootstrap: Bootstrap, topics: Iterable[str], options: KafkaOptions | None = None
    ) -> None:
        self._bootstrap = bootstrap
        self._topics = list(topics)
        self._cluster = KafkaCluster(bootstrap, options)
        self._reader: Any = None
        self._tps: list[TP] = []

    async def __aenter__(self) -> Self:
        try:
            self._tps = await partitions_of(self._bootstrap, self._topics)
            self._reader = await self._cluster.reader()
            await self._reader.assign(await self._cluster.begin_offsets(self._tps))
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def fetch(self, timeout: float = 0.5) -> list[Record]:
        """Wait up to `timeout` seconds for the next records. The list is empty if none arrive.

        A record that cannot be read is a `Damaged`.
        """
        batches = await self._reader.fetch(max_records=5000, timeout=timeout)
        return [record for batch in batches for record in batch.records]

    async def to_end(self) -> AsyncIterator[Record]:
        """Yield every record up to the current ends of the topics. Waits for open transactions to end."""
        ends = await self._cluster.end_offsets(self._tps)
        while any(self._reader.position(tp) < end for tp, end in ends.items()):
            for record in await self.fetch():
                yield record

    async def _close(self) -> None:
        if self._reader is not None:
            await self._reader.close()
        await self._cluster.close()


async def partitions_of(bootstrap: Bootstrap, topics: Iterable[str]) -> list[TP]:
    """Every partition of these topics. Raises TopicMismatch if the cluster lacks a topic."""
    names = list(topics)
    async with KafkaTopics(bootstrap) as described:
        found = await described.describe(names)
    if missing := sorted(set(names) - set(found)):
        raise TopicMismatch(
            f"the cluster has no topic {', '.join(missing)}: start a worker, which creates them"
        )
    return [TP(name, number) for name in names for number in range(found[name].partitions)]


async def unhandled(bootstrap: Bootstrap, group: str, topics: Iterable[str]) -> dict[str, int]:
    """How many messages of each topic the group has not committed yet; topics without any are left out."""
    tps = await partitions_of(bootstrap, topics)
    cluster = KafkaCluster(bootstrap)
    try:
        return await unhandled_in(cluster, group, tps)
    finally:
        await cluster.close()


async def waiting(bootstrap: Bootstrap, app_id: str) -> dict[str, int]:
    """How many messages wait for each handler, read from the lane changelog: for a retry, behind another
    message, or because of an open breaker. Handlers with none are left out. Raises ChangelogDamaged.
    """
    queues: dict[tuple[int, bytes], WaitingQueue] = {}
    async with TopicReader(bootstrap, [changelog_topic(app_id, LANE)]) as reader:
        async for record in reader.to_end():
            if isinstance(record, Damaged):
                raise ChangelogDamaged(record.why)
            kind, name = split_lane_key(record.key or b"")
            if kind != QUEUE:
                continue
            if record.value is None:
                queues.pop((record.partition, name), None)
            else:
                queues[record.partition, name] = read_queue(record.value)
    counts: dict[str, int] = {}
    for (_, name), queue in queues.items():
        handler = handler_of(name).decode()
        counts[handler] = counts.get(handler, 0) + queue.length
    return counts
