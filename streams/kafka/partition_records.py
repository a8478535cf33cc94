"""Reads the records of a fetched partition. A record that cannot be read is replaced by a `Damaged` record,
and reading continues after it.

aiokafka's own classes raise an error there at each fetch, so that one bad record blocks a partition for good.
They also decompress without a limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords

from streams.kafka.records.batches import BatchRecords, damaged_batch, opened, read_batch
from streams.kafka.records.decompression import CannotOpen
from streams.kafka.records.heads import Head, end_of, head_of, split
from streams.ports import NO_EPOCH, TP

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Isolation:
    """Passed to aiokafka as `check_crcs`, this turns on `Damaged` records for a reader. `limit` is the
    largest size of a decompressed batch, in bytes.
    """

    limit: int
    #: Offset and CRC-32 of a batch with a wrong checksum, by partition. The batch is fetched a second time:
    #: if the network damaged it, it is right then; if the disk did, it is the same.
    suspects: dict[TP, tuple[int, int]] = field(default_factory=dict)
    #: Ids of transactional producers whose records are returned as `OwnRecord`.
    trusted: frozenset[int] = frozenset()
    #: By partition: below this offset, records of any transactional producer are returned as `OwnRecord`.
    below: Mapping[TP, int] = field(default_factory=dict)

    def lets_through(self, tp: TP, head: Head, body: bytes) -> bool:  # noqa: ARG002 - for those that choose
        """Whether to read the records of an intact batch. `body` contains them, decompressed."""
        return True

    def is_sure(self, tp: TP, base: int, raw: bytes) -> bool:
        """Whether a batch with a wrong checksum was fetched before with the same bytes. If not, logs it."""
        suspect = (base, zlib.crc32(raw))
        if self.suspects.pop(tp, None) == suspect:
            return True
        self.suspects[tp] = suspect
        log.warning(
            "batch_damaged", topic=tp.topic, partition=tp.partition, offset=base, action="fetched again"
        )
        return False


class FetchedRecords:
    """The fetched bytes of a partition, not parsed yet. Replaces aiokafka's MemoryRecords."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def size_in_bytes(self) -> int:
        """Number of bytes, including an incomplete batch at the end."""
        return len(self.data)

    def has_next(self) -> bool:
        """Whether there is at least one complete batch."""
        return bool(MemoryRecords(self.data).has_next())


class IsolatingRecords(fetcher.PartitionRecords):
    """The records of one partition, in order. Without an `Isolation`, it behaves like aiokafka's class."""

    def __init__(
        self,
        tp: Any,
        records: FetchedRecords,
        aborted_transactions: Any,
        fetch_offset: int,
        key_deserializer: Any,
        value_deserializer: Any,
        check_crcs: Any,
        isolation_level: int,
    ) -> None:
        super().__init__(
            tp,
            MemoryRecords(records.data),
            aborted_transactions,
            fetch_offset,
            key_deserializer,
            value_deserializer,
            check_crcs,
            isolation_level,
        )
        #: Leader epoch in which the broker wrote the last batch with a right checksum.
        self.epoch = NO_EPOCH
        if isinstance(check_crcs, Isolation):
            self._place = TP(*tp)
            self._records_iterator = self._isolated(records.data, check_crcs)

    def __iter__(self) -> Iterator[Any]:
        """Iterate directly; aiokafka's version calls a function for each record."""
        return self._records_iterator

    def _isolated(self, data: bytes, isolation: Isolation) -> Iterator[Any]:
        for raw, after in split(data):
            head = head_of(raw)
            if head is None:
                yield from self._from_here(read_batch(self._place, raw, isolation.limit))
                continue
            batch = DefaultRecordBatch(raw)
            is_whole = batch.validate_crc()
            if not is_whole and not isolation.is_sure(self._place, head.base, raw):
                return
            if is_whole:
                self.epoch = head.epoch
            end = head.last + 1 if is_whole and head.last_delta >= 0 else end_of(head, after)
            if end is None:
                raise CorruptRecordException(
                    f"{self._place.topic}[{self._place.partition}]: the record batch at offset {head.base}"
                    " does not say where it ends, and nothing comes after it: it cannot be read on"
                )
            if not self._is_passed_over(head, batch, is_whole=is_whole):
                if is_whole:
                    yield from self._sound(head, raw, end, isolation)
                else:
                    yield from self._damaged(head, raw, end, "its checksum is wrong")
            self.next_fetch_offset = end

    def _is_passed_over(self, head: Head, batch: Any, *, is_whole: bool) -> bool:
        """Whether to skip a batch: a transaction marker, or part of an aborted transaction."""
        self._consume_aborted_up_to(head.base)
        producers = self._aborted_producers
        if head.is_control:
            # The next marker of a producer in `producers` can only be the abort marker.
            if not is_whole or _is_abort_marker(batch):
                producers.discard(head.producer_id)
            return is_whole
        return head.is_transactional and head.producer_id in producers

    def _sound(self, head: Head, raw: bytes, end: int, isolation: Isolation) -> Iterator[Any]:
        """The records of a batch with a right checksum, decoded in small groups as the reader takes them."""
        is_own = head.is_transactional and (
            head.producer_id in isolation.trusted or head.base < isolation.below.get(self._place, 0)
        )
        try:
            body, begin = opened(head, raw, isolation.limit)
        except CannotOpen as error:
            yield from self._damaged(head, raw, end, str(error))
            return
        if not isolation.lets_through(self._place, head, body):
            return
        records = BatchRecords(self._place, head, body, begin, end - 1, own=is_own)
        while found := records.take():
            yield from self._from_here(found)

    def _damaged(self, head: Head, raw: bytes, end: int, why: str) -> Iterator[Any]:
        """The whole batch as one damaged record."""
        whole = damaged_batch(self._place, raw, head.base, end - 1, head.max_timestamp, why)
        return self._from_here([whole])

    def _from_here(self, records: Iterable[Any]) -> Iterator[Any]:
        """Yield the records at or after the next fetch offset, and move it past them."""
        for record in records:
            if record.offset >= self.next_fetch_offset:
                self.next_fetch_offset = record.offset + 1
                yield record


def _is_abort_marker(batch: Any) -> bool:
    try:
        return bool(ControlRecord.parse(next(iter(batch)).key) == ABORT_MARKER)
    except Exception:  # noqa: BLE001 - see the caller
        return True


def isolate() -> None:
    """Replace aiokafka's record classes with the ones in this module."""
    fetcher.MemoryRecords = FetchedRecords
    fetcher.PartitionRecords = IsolatingRecords


isolate()
