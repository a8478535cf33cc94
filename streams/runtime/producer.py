"""Kafka transactions on aiokafka's producer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced
from aiokafka.producer import sender
from aiokafka.structs import OffsetAndMetadata

from streams.brokers import Bootstrap
from streams.errors import TooLarge
from streams.ports import TP, Outgoing
from streams.runtime.clients import KafkaOptions, deliver_within, require_partitions
from streams.runtime.discarding import close_cut, cut, retrieve
from streams.runtime.transactions.steps import Steps

# The broker answers CONCURRENT_TRANSACTIONS to the first request of a transaction while it still writes
# the markers of the one before, a few milliseconds; aiokafka then waits 20 ms, once for each transaction.
sender.BACKOFF_OVERRIDE = 0.003

# The broker may answer NOT_ENOUGH_REPLICAS to the first batch of a transaction while it verifies the
# partition; aiokafka retries after this time, 100 ms unless set.
_RETRY_BACKOFF_MS = 10


class KafkaTransactions(Steps):
    """A transactional producer with a fixed id. After the first exception it is of no more use: every
    later call raises the same kind, and `discard` lets go of it.

    Fencing is seen at the first request to the broker, which `begin` does not make.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        transactional_id: str,
        options: KafkaOptions,
        *,
        starting: asyncio.Lock,
        closing: set[asyncio.Task[None]],
    ) -> None:
        super().__init__(transactional_id, options, closing)
        self._bootstrap = bootstrap
        self._starting = starting
        self._producer: Any = None
        self._known: set[TP] = set()

    @property
    def producer_id(self) -> int:
        """By which brokers know it, once it has started."""
        return int(self._producer._txn_manager.producer_id)

    async def start(self) -> None:
        """Initialise the id: fences its previous owner and ends the transaction that one left open.

        Raises Fenced, or OutcomeUnknown when the cluster did not answer within the bound.
        """
        if self._producer is not None or self._failure is not None:
            raise RuntimeError(f"the producer {self._id} was started before: make another one")
        # Two starts of one id at the same time would fence each other.
        async with self._starting:
            self._producer = AIOKafkaProducer(
                **self._options.connection(self._bootstrap),
                transactional_id=self._id,
                transaction_timeout_ms=int(self._options.transaction_timeout * 1000),
                acks="all",
                linger_ms=0,
                max_batch_size=self._options.max_batch,
                retry_backoff_ms=_RETRY_BACKOFF_MS,
            )
            deliver_within(self._producer, self._options.step_timeout)
            await self._step("initialise", self._producer.start(), self._options.start_timeout)

    async def begin(self) -> None:
        """Begin a transaction. No request is made: another owner's start is seen by the next step."""
        await self._step("begin", self._running().begin_transaction())

    async def send(self, batches: Mapping[TP, Sequence[Outgoing]]) -> dict[TP, int]:
        """Write every record and wait until the broker has them all.

        Returns for each partition the offset after its last record; the transaction's marker comes later
        and is not counted. Raises TooLarge before anything is sent when a record does not fit a batch,
        RecordRefused when the broker does not take one for what it is, and Refused when it takes none.
        """
        self._running()
        timestamp = int(time.time() * 1000)
        packed = {tp: self._pack(tp, records, timestamp) for tp, records in batches.items() if records}
        return await self._step("send", self._deliver(packed))

    def _pack(self, tp: TP, records: Sequence[Outgoing], timestamp: int) -> list[Any]:
        create = self._producer.create_batch
        batch = create()
        packed = [batch]
        append = batch.append
        for key, value, headers in records:
            if type(headers) is not list:
                headers = list(headers)  # noqa: PLW2901 - aiokafka's compiled builder takes nothing else
            if append(timestamp=timestamp, key=key, value=value, headers=headers) is None:
                batch = create()
                packed.append(batch)
                append = batch.append
                append(timestamp=timestamp, key=key, value=value, headers=headers)
        limit = max(self._options.max_batch, self._options.max_record)
        for batch in packed:
            # A batch takes its first record whatever its size, so one that is over holds just that record.
            if batch.size() > limit:
                raise TooLarge(
                    f"a record for {tp.topic} makes a batch of {batch.size()} bytes; {limit} is the most"
                )
        return packed

    async def _deliver(self, packed: Mapping[TP, list[Any]]) -> dict[TP, int]:
        producer = self._producer
        unknown = packed.keys() - self._known
        if unknown:
            await require_partitions(producer.client, unknown, self._options.metadata_timeout)
            self._known |= unknown
        answers = []
        for tp, batch in _rounds(packed):
            answer = await producer.send_batch(batch, tp.topic, partition=tp.partition)
            answer.add_done_callback(retrieve)
            answers.append((tp, batch.record_count(), answer))
        ends: dict[TP, int] = {}
        for tp, count, answer in answers:
            # Every one, before the commit: aiokafka commits even when a batch has failed.
            metadata = await answer
            if metadata.offset < 0:
                raise KafkaError(
                    f"the broker did not say where it wrote a batch of {tp.topic}[{tp.partition}]"
                )
            ends[tp] = metadata.offset + count
        return ends

    async def send_offsets(self, offsets: Mapping[TP, int], group: str) -> None:
        """Add the group's source positions to the transaction."""
        positions = {TopicPartition(*tp): OffsetAndMetadata(offset, "") for tp, offset in offsets.items()}
        await self._step("send offsets", self._running().send_offsets_to_transaction(positions, group))

    async def commit(self) -> None:
        """Commit. Raises Fenced, or OutcomeUnknown when the answer was lost."""
        await self._step("commit", self._running().commit_transaction())

    async def discard(self) -> None:
        """Let go without ending the transaction: neither abort nor commit. Closes in the background."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # From here on nothing leaves this producer, whatever its background task still holds.
            cut(producer.client)
            self._let_go(close_cut(producer))

    def _running(self) -> Any:
        self._usable()
        if self._producer is None:
            raise RuntimeError(f"the producer {self._id} was not started")
        return self._producer

    def _was_fenced(self, error: BaseException) -> bool:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, (ProducerFenced, InvalidProducerEpoch)):
                return True
            cause = cause.__cause__
        # A fenced sender task dies, and what one calls next fails with a complaint about the state alone.
        task = self._producer._sender.sender_task
        if task is None or not task.done() or task.cancelled():
            return False
        return isinstance(task.exception(), (ProducerFenced, InvalidProducerEpoch))


def _rounds(packed: Mapping[TP, list[Any]]) -> Iterator[tuple[TP, Any]]:
    """The first batch of every partition, then the second of each: one request carries a whole round,
    and the next batch of a partition waits until the one before has left.
    """
    for batches in zip_longest(*packed.values()):
        for tp, batch in zip(packed, batches, strict=True):
            if batch is not None:
                yield tp, batch
