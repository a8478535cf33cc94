"""Records packed into batches."""

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
#: The length of a batch counts from behind itself.
_UNCOUNTED = OFFSET.size + LENGTH.size


class PackedBatch(NamedTuple):
    """Records of one partition that go together; their owner is set when they go.

    Attributes:
        body: their bytes.
        records: how many they are.
        timestamp: of each, epoch milliseconds.
    """

    body: bytes
    records: int
    timestamp: int

    @property
    def size(self) -> int:
        """Bytes of the batch."""
        return HEADER.size + len(self.body)

    def build(self, owner: Owner, sequence: int) -> bytearray:
        """The bytes of the batch."""
        times, numbers = (self.timestamp, self.timestamp), (sequence, self.records)
        head = (0, self.size - _UNCOUNTED, _NO_EPOCH, _FORMAT, 0, TRANSACTIONAL, self.records - 1)
        built = bytearray(HEADER.pack(*head, *times, owner.producer_id, owner.epoch, *numbers))
        built += self.body
        pack_into(">I", built, MAGIC_AT + 1, calc_crc32c(built[CHECKED_FROM:]))
        return built


def pack(
    tp: TP, records: Sequence[Sendable], timestamp: int, options: KafkaOptions, most: int
) -> list[PackedBatch]:
    """Batches of at most `most` bytes, or of one record. Raises TooLarge when that is too large."""
    packed = [PackedBatch(body, count, timestamp) for body, count in write_records(records, most)]
    limit = max(options.max_batch, options.max_record)
    for batch in packed:
        # A batch takes its first record whatever its size, so one that is over holds just that record.
        if batch.size > limit:
            size = f"a batch of {batch.size} bytes; {limit} is the most"
            raise TooLarge(f"a record for {tp.topic} makes {size}")
    return packed


#: After the highest number comes 0.
_NUMBERS = 2**31


class ProducerSequences:
    """An owner and the numbers of its records. They count within an epoch."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._next: dict[TP, int] = {}

    def next(self, tp: TP) -> int:
        """The number of the next record."""
        return self._next.get(tp, 0)

    def written(self, tp: TP, records: int) -> None:
        """The partition's leader has so many more."""
        self._next[tp] = (self.next(tp) + records) % _NUMBERS

    def renew(self, outcome: TransactionAnswer) -> None:
        """The transaction has ended. Where that raised the epoch, or gave a new producer id since epochs are
        used up, numbers begin at 0 again.
        """
        if outcome.producer_id < 0:
            return
        self.owner = Owner(self.owner.transactional_id, outcome.producer_id, outcome.epoch)
        self._next.clear()
