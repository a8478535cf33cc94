"""Records packed into batches, by aiokafka's compiled builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from streams.errors import TooLarge
from streams.ports import TP, Outgoing
from streams.runtime.kafka.clients import KafkaOptions
from streams.runtime.transactions.requests import Owner, TransactionAnswer

_FORMAT = 2
_UNCOMPRESSED = 0
_UNKNOWN = -1


class PackedBatch(NamedTuple):
    """Records of one partition that go together; their owner is set when they go.

    Attributes:
        builder: has them.
        records: how many they are.
    """

    builder: Any
    records: int

    def build(self, owner: Owner, sequence: int) -> bytearray:
        """The bytes of the batch, which are the builder's own; once only."""
        self.builder.set_producer_state(owner.producer_id, owner.epoch, sequence)
        built: bytearray = self.builder.build()
        return built


def pack(
    tp: TP, records: Sequence[Outgoing], timestamp: int, options: KafkaOptions, most: int
) -> list[PackedBatch]:
    """Batches of at most `most` bytes, or of one record. Raises TooLarge when that is too large."""
    packed: list[PackedBatch] = []
    builder, count = _builder(most), 0
    append = builder.append
    for key, value, headers in records:
        if type(headers) is not list:
            headers = list(headers)  # noqa: PLW2901 - the compiled builder takes nothing else
        if append(count, timestamp, key, value, headers) is None:
            packed.append(PackedBatch(builder, count))
            builder, count = _builder(most), 0
            append = builder.append
            append(count, timestamp, key, value, headers)
        count += 1
    packed.append(PackedBatch(builder, count))
    limit = max(options.max_batch, options.max_record)
    for batch in packed:
        # A batch takes its first record whatever its size, so one that is over holds just that record.
        if (size := batch.builder.size()) > limit:
            raise TooLarge(f"a record for {tp.topic} makes a batch of {size} bytes; {limit} is the most")
    return packed


def _builder(size: int) -> Any:
    # magic, compression, transactional, producer id, epoch, first sequence number, size
    return DefaultRecordBatchBuilder(_FORMAT, _UNCOMPRESSED, 1, _UNKNOWN, _UNKNOWN, 0, size)


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
