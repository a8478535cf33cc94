"""Packs records into batches, and counts their sequence numbers."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack_into
from typing import NamedTuple

from aiokafka.record.util import calc_crc32c

from streams.errors import TooLarge
from streams.kafka.clients import KafkaOptions
from streams.kafka.records.heads import CHECKED_FROM, HEADER, LENGTH, MAGIC_AT, OFFSET, TRANSACTIONAL
from streams.kafka.records.writing import write_records
from streams.kafka.transactions.requests import Owner, TransactionAnswer
from streams.ports import TP, Sendable

_FORMAT, _NO_EPOCH = 2, -1
#: Bytes that the length field of a batch does not count: the base offset and the field itself.
_UNCOUNTED = OFFSET.size + LENGTH.size


class PackedBatch(NamedTuple):
    """Encoded records of one partition that are sent together. `build` adds the owner when they are sent.

    Attributes:
        body: the encoded records.
        records: number of records.
        timestamp: timestamp of every record, in epoch milliseconds.
    """

    body: bytes
    records: int
    timestamp: int

    @property
    def size(self) -> int:
        """Size of the batch in bytes, with its header."""
        return HEADER.size + len(self.body)

    def build(self, owner: Owner, sequence: int) -> bytearray:
        """The batch as bytes, for an owner and the sequence number of the first record."""
        times, numbers = (self.timestamp, self.timestamp), (sequence, self.records)
        head = (0, self.size - _UNCOUNTED, _NO_EPOCH, _FORMAT, 0, TRANSACTIONAL, self.records - 1)
        built = bytearray(HEADER.pack(*head, *times, owner.producer_id, owner.epoch, *numbers))
        built += self.body
        pack_into(">I", built, MAGIC_AT + 1, calc_crc32c(built[CHECKED_FROM:]))
        return built


def pack(
    tp: TP, records: Sequence[Sendable], timestamp: int, options: KafkaOptions, most: int
) -> list[PackedBatch]:
    """Batches of at most `most` bytes, or of one larger record. Raises TooLarge if a record exceeds the
    options' max_batch and max_record.
    """
    packed = [PackedBatch(body, count, timestamp) for body, count in write_records(records, most)]
    limit = max(options.max_batch, options.max_record)
    for batch in packed:
        # A batch takes its first record at any size, so a batch over the limit holds a single record.
        if batch.size > limit:
            size = f"a batch of {batch.size} bytes; {limit} is the most"
            raise TooLarge(f"a record for {tp.topic} makes {size}")
    return packed


#: Sequence numbers wrap to 0 here.
_NUMBERS = 2**31


class ProducerSequences:
    """An owner and the sequence numbers of its records, which count within an epoch."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._next: dict[TP, int] = {}

    def next(self, tp: TP) -> int:
        """Sequence number of the partition's next record."""
        return self._next.get(tp, 0)

    def written(self, tp: TP, records: int) -> None:
        """Record that the partition's leader has written this many more records."""
        self._next[tp] = (self.next(tp) + records) % _NUMBERS

    def renew(self, outcome: TransactionAnswer) -> None:
        """Record the end of a transaction. If the answer has a new epoch, or a new producer id because the
        epochs were used up, sequence numbers start at 0 again.
        """
        if outcome.producer_id < 0:
            return
        self.owner = Owner(self.owner.transactional_id, outcome.producer_id, outcome.epoch)
        self._next.clear()
