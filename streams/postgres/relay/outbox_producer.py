"""An idempotent producer for rows of the outbox, and when it is let go of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    CorruptRecordException,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from streams.brokers import Bootstrap
from streams.errors import AccessRefused, ClusterUnavailable, TooLarge, TopicMismatch
from streams.kafka.clients import KafkaOptions, deliver_within, require_partitions
from streams.ports import TP
from streams.postgres.outbox import OutboxRow, record_of
from streams.postgres.relay import Published

#: How long a batch may wait for its broker, in seconds: an election takes less.
_DELIVERY_TIMEOUT = 20.0
#: How long the cluster may take to tell of a topic that it has, in seconds.
_LOOK_FOR_TOPIC = 2.0
#: Between requests for a topic that it does not have, in seconds.
_UNKNOWN_FOR = 5.0
_RETRY_BACKOFF_MS = 20
_CLOSE_TIMEOUT = 2.0

#: What the broker says about the records themselves: the same ones would be refused again.
REFUSALS = (
    CorruptRecordException,
    InvalidTimestampError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)
#: What the broker says about rows or their topic, and would say again.
REFUSED = (*REFUSALS, UnknownTopicOrPartitionError)
#: What leaves open whether a batch was written.
IN_DOUBT = (KafkaError, TimeoutError, OSError)


class Producing:
    """Has a producer, starts another one when there is none, and lets go of one that is in doubt."""

    def __init__(self, bootstrap: Bootstrap, options: KafkaOptions) -> None:
        self._bootstrap = bootstrap
        self._options = options
        self._producer: IdempotentProducer | None = None
        self._starting = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self.unknown: dict[str, float] = {}

    def producer(self) -> Use:
        """One to use, `async with`: an error inside of it discards it."""
        return Use(self)

    async def started(self) -> IdempotentProducer:
        """The producer. Raises ClusterUnavailable."""
        async with self._starting:
            if self._producer is None:
                self._producer = await IdempotentProducer.start(self._bootstrap, self._options, self.unknown)
            return self._producer

    def discard(self, which: IdempotentProducer | None = None) -> None:
        """Let go of a producer, the one there is unless given. Nothing leaves it any more."""
        producer = which or self._producer
        if producer is None:
            return
        if producer is self._producer:
            self._producer = None
        producer.is_retired = True
        producer.cut()
        if not producer.users:
            self._close(producer)

    def retire(self, which: IdempotentProducer) -> None:
        """Begin nothing more with it, and close it when what is under way has ended: a broker that has
        refused a batch takes no later one of that partition.
        """
        if which is self._producer:
            self._producer = None
            which.is_retired = True

    def used(self, which: IdempotentProducer) -> None:
        """A user has ended."""
        which.users -= 1
        if which.is_retired and not which.users:
            self._close(which)

    def _close(self, producer: IdempotentProducer) -> None:
        producer.cut()
        task = asyncio.get_running_loop().create_task(close_cut(producer.aiokafka))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def closed(self) -> None:
        """Wait until what was discarded is closed."""
        await asyncio.gather(*self._closing, return_exceptions=True)


class Use:
    """A use of a producer, which says ClusterUnavailable of whatever was in doubt."""

    def __init__(self, producing: Producing) -> None:
        self._producing = producing
        self._producer: IdempotentProducer | None = None

    async def __aenter__(self) -> IdempotentProducer:
        self._producer = await self._producing.started()
        self._producer.users += 1
        return self._producer

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._producer is None:
            return
        if error is not None:
            self._producing.discard(self._producer)
        self._producing.used(self._producer)
        if isinstance(error, IN_DOUBT):
            raise ClusterUnavailable(f"Kafka did not say that it has all of a batch: {error!r}") from error


class IdempotentProducer:
    """An idempotent producer that is started."""

    def __init__(self, aiokafka: Any, options: KafkaOptions, unknown: dict[str, float]) -> None:
        self.aiokafka = aiokafka
        self._limit = options.max_batch
        self._unknown = unknown
        self._cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.users = 0
        self.is_retired = False
        self.is_spoiled = False

    @classmethod
    async def start(
        cls, bootstrap: Bootstrap, options: KafkaOptions, unknown: dict[str, float]
    ) -> IdempotentProducer:
        """Connect. Raises ClusterUnavailable."""
        producer = AIOKafkaProducer(
            **options.connection(bootstrap),
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            max_batch_size=options.max_batch,
            retry_backoff_ms=_RETRY_BACKOFF_MS,
        )
        deliver_within(producer, _DELIVERY_TIMEOUT)
        try:
            async with asyncio.timeout(options.start_timeout):
                await producer.start()
        except (AccessRefused, KafkaError, TimeoutError, OSError) as error:
            cut(producer.client)
            await close_cut(producer)
            if isinstance(error, AccessRefused):
                raise
            raise ClusterUnavailable(f"Kafka at {bootstrap} cannot be reached: {error!r}") from error
        return cls(producer, options, unknown)

    def cut(self) -> None:
        """Send nothing more; waiting callers get an error."""
        cut(self.aiokafka.client)
        if not self._cut.done():
            self._cut.set_result(None)

    async def partitions(self, topic: str) -> int | None:
        """How many a topic has; None: the cluster has no such topic. Raises ClusterUnavailable."""
        client = self.aiokafka.client
        found = client.cluster.partitions_for_topic(topic)
        if found:
            return len(found)
        now = time.monotonic()
        if self._unknown.get(topic, 0.0) > now:
            return None
        try:
            await require_partitions(client, [TP(topic, 0)], _LOOK_FOR_TOPIC)
        except TopicMismatch:
            self._unknown[topic] = now + _UNKNOWN_FOR
            return None
        return len(client.cluster.partitions_for_topic(topic))

    def new_batch(self) -> Any:
        """An empty one."""
        return self.aiokafka.create_batch()

    def pack(self, rows: Sequence[OutboxRow]) -> tuple[Any, int]:
        """A batch of the first rows, and how many they are. Raises TooLarge when the first one fits none."""
        batch = self.new_batch()
        append, timestamp, count = batch.append, int(time.time() * 1000), 0
        for row in rows:
            key, value, headers = record_of(row)
            if append(timestamp=timestamp, key=key, value=value, headers=headers) is None:
                break
            count += 1
        # A batch takes its first record whatever its size.
        if count == 1 and batch.size() > self._limit:
            raise TooLarge(f"it makes a batch of {batch.size()} bytes, {self._limit} is the most")
        return batch, count

    async def write(self, tp: TP, rows: list[OutboxRow], done: Published) -> str:
        """Write rows in their order, a batch at a time: when one is refused, none is under way behind it,
        which the broker could take. Returns why the rest is in doubt, or empty.
        """
        at = 0
        while at < len(rows):
            try:
                batch, count = self.pack(rows[at:] if at else rows)
                await self.send(batch, tp)
            except TooLarge:
                done.suspects.extend(rows[at:])
                return ""
            except REFUSED:
                self.is_spoiled = True
                done.suspects.extend(rows[at:])
                return ""
            except IN_DOUBT as error:
                return f"Kafka did not say that it has a batch of {tp.topic}[{tp.partition}]: {error!r}"
            done.written.extend(rows[at : at + count])
            at += count
        return ""

    async def send(self, batch: Any, tp: TP) -> None:
        """Send a batch and wait until all replicas in sync have it. Raises KafkaError."""
        if self._cut.done():
            raise KafkaError("the producer was discarded")
        answer = await self.aiokafka.send_batch(batch, tp.topic, partition=tp.partition)
        answer.add_done_callback(retrieve)
        await asyncio.wait((answer, self._cut), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise KafkaError("the producer was discarded")
        answer.result()


def retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieve a future's outcome, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()


def cut(client: Any) -> None:
    """From here on nothing leaves this client, whatever a background task of its producer still holds."""

    async def refuse(*_: object, **__: object) -> NoReturn:
        raise KafkaError("the producer was discarded")

    async def nothing() -> None:
        pass

    client.send = refuse
    client.force_metadata_update = lambda: asyncio.ensure_future(nothing())
    client._maybe_wait_metadata = nothing


async def close_cut(producer: Any) -> None:
    """Close a producer that has been cut off.

    Not with its own `stop`: that one first waits until every batch is delivered, for ever when the broker
    is gone, and sends the commit that a step has timed out on.
    """
    producer._closed = True
    task = producer._sender.sender_task
    if task is not None:
        # It would fail batches that are queued for a retry twice.
        task.remove_done_callback(producer._sender._fail_all)
    await _close_connections(producer.client)
    if task is not None:
        task.cancel()
        await asyncio.wait([task], timeout=_CLOSE_TIMEOUT)
        task.cancel()
        task.add_done_callback(retrieve)
        await _close_connections(producer.client)  # one that was being opened meanwhile
    waiters = [producer._txn_manager._transaction_waiter]
    for batches in producer._message_accumulator._batches.values():
        waiters += [waiter for batch in batches for waiter in (batch.future, batch._drain_waiter)]
    for waiter in waiters:
        if waiter is not None:
            waiter.add_done_callback(retrieve)


async def _close_connections(client: Any) -> None:
    with suppress(Exception):  # what cannot be closed here is closed by the broker
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await client.close()
