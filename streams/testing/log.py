"""Partitions of the fake broker: logs with gaps in their offsets, as transactions and compaction make."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from enum import Enum
from typing import NamedTuple

from streams.kafka.records.batches import damaged_batch, read_batch
from streams.kafka.records.heads import HEADER, head_of
from streams.ports import TP, Headers, Note, OwnRecord, Record
from streams.testing.batches import is_whole


class FakeRecord(NamedTuple):
    """A record as a reader gets it. `timestamp` is in milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class TransactionState(Enum):
    """End of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Transaction:
    """A transaction at the broker: the partitions it touched, and positions that its commit would set."""

    __slots__ = ("notes", "offsets", "partitions", "producer_id", "state")

    def __init__(self, producer_id: int = -1) -> None:
        self.producer_id = producer_id
        self.state = TransactionState.OPEN
        self.partitions: set[TP] = set()
        self.offsets: dict[str, dict[TP, int]] = {}
        self.notes: dict[tuple[str, TP], Note] = {}


class LoggedRecord(NamedTuple):
    """An offset of a log. A marker has no record; a record outside any transaction has no `transaction`."""

    offset: int
    record: Record | None
    transaction: Transaction | None

    @property
    def visible(self) -> bool:
        """Whether a read_committed reader gets to see it, once the last stable offset is past it."""
        return self.record is not None and (
            self.transaction is None or self.transaction.state is TransactionState.COMMITTED
        )


class Log:
    """One partition."""

    def __init__(self, tp: TP) -> None:
        self.tp = tp
        self.start = 0
        self.end = 0
        self._entries: list[LoggedRecord] = []
        self._open: dict[Transaction, int] = {}
        self._cleaned_at: dict[int, float] = {}
        #: The first offset of each leader epoch, from epoch 0 on.
        self._epochs = [0]

    @property
    def epoch(self) -> int:
        """The epoch of the present leader."""
        return len(self._epochs) - 1

    def epoch_of(self, offset: int) -> int:
        """The leader epoch in which an offset was written."""
        return max(0, bisect_right(self._epochs, offset) - 1)

    def end_of_epoch(self, epoch: int) -> int | None:
        """Where the log goes on in a later epoch, or its end; None for an epoch that it never had."""
        if epoch > self.epoch:
            return None
        return self._epochs[epoch + 1] if epoch < self.epoch else self.end

    def elect(self) -> None:
        """Another leader, which has all that was acknowledged."""
        self._epochs.append(self.end)

    def cut(self, offset: int) -> None:
        """Another leader, which has nothing from an offset on: an unclean election, or a lost disk."""
        self._entries = [entry for entry in self._entries if entry.offset < offset]
        self._open = {each: first for each, first in self._open.items() if first < offset}
        self.end = min(self.end, offset)
        self._epochs = [min(first, self.end) for first in self._epochs]
        self.elect()

    def first_since(self, since_ms: int) -> int | None:
        """The offset of the first record since a time, in epoch milliseconds; None if there is none."""
        return next(
            (each.offset for each in self._entries if each.record and each.record.timestamp >= since_ms), None
        )

    @property
    def stable(self) -> int:
        """The last stable offset: the first record of an open transaction, or the end."""
        return min(self._open.values()) if self._open else self.end

    def first_of(self, transaction: Transaction) -> int | None:
        """The first offset of an open transaction; None when it has written nothing here."""
        return self._open.get(transaction)

    def append(
        self,
        transaction: Transaction | None,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
    ) -> int:
        """Write a record; returns its offset."""
        offset = self.end
        if transaction is not None:
            self._open.setdefault(transaction, offset)
        record = FakeRecord(*self.tp, offset, timestamp, key, value, tuple(headers))
        self._entries.append(LoggedRecord(offset, record, transaction))
        self.end += 1
        return offset

    def append_batch(self, raw: bytes, limit: int) -> int:
        """Write a batch as another client made it, or as a disk has left it, of which readers decompress
        `limit` bytes at most; returns its first offset. It is of no transaction.
        """
        head = head_of(raw)
        if head is None:
            raise ValueError("the fake takes batches of format 2 alone")
        first = self.end
        raw = HEADER.pack(*head._replace(base=first)) + raw[HEADER.size :]
        last = first + head.last_delta
        if is_whole(raw):
            records = list(read_batch(self.tp, raw, limit))
        else:
            records = [damaged_batch(self.tp, raw, first, last, head.max_timestamp, "its checksum is wrong")]
        self._entries += [LoggedRecord(record.offset, record, None) for record in records]
        self.end = last + 1
        return first

    def spoil(self, offset: int) -> None:
        """Damage a record where it lies, as a disk may: its batch has a wrong checksum."""
        place = bisect_left(self._entries, offset, key=lambda entry: entry.offset)
        was = self._entries[place]
        record = damaged_batch(self.tp, b"spoiled", offset, offset, -1, "its checksum is wrong")
        self._entries[place] = LoggedRecord(offset, record, was.transaction)

    def mark(self, transaction: Transaction) -> None:
        """Write the marker of a transaction that has ended."""
        self._open.pop(transaction, None)
        self._entries.append(LoggedRecord(self.end, None, transaction))
        self.end += 1

    def read(
        self, position: int, max_records: int, trusted: Collection[int] = (), below: int = 0
    ) -> tuple[list[Record], int]:
        """Committed records from a position, and the position after them: over markers and aborted records,
        unless the limit stopped it right behind a record. Those of `trusted` producers are `OwnRecord`,
        and those of any `below` an offset.
        """
        records: list[Record] = []
        stable = self.stable
        for entry in self.entries(position):
            if entry.offset >= stable:
                break
            if entry.visible and entry.record is not None:
                if len(records) == max_records:
                    return records, records[-1].offset + 1
                record, of = entry.record, entry.transaction
                is_own = of is not None and (of.producer_id in trusted or record.offset < below)
                if is_own and isinstance(record, FakeRecord):
                    record = OwnRecord(*record)
                records.append(record)
                if len(records) == max_records:
                    return records, entry.offset + 1
        return records, max(position, stable)

    def entries(self, start: int = 0) -> Iterator[LoggedRecord]:
        """The log from an offset on, markers and aborted records too."""
        first = bisect_left(self._entries, start, key=lambda entry: entry.offset)
        yield from self._entries[first:]

    def truncate(self, before: int) -> None:
        """Remove everything before an offset, as retention does."""
        self.start = max(self.start, min(before, self.end))
        self._entries = list(self.entries(self.start))

    def compact(self, *, now: float, delete_retention: float) -> None:
        """Keep the last committed value of each key below the last stable offset, and leave holes for the
        rest. A deletion goes when it was compacted for the first time `delete_retention` seconds ago.
        """
        stable = self.stable
        latest = {
            e.record.key: e.offset for e in self._entries if e.record and e.visible and e.offset < stable
        }

        def kept(entry: LoggedRecord) -> bool:
            if entry.offset >= stable or entry.record is None:
                return True
            if not entry.visible or latest[entry.record.key] != entry.offset:
                return False
            if entry.record.value is not None:
                return True
            return now < self._cleaned_at.setdefault(entry.offset, now) + delete_retention

        self._entries = [entry for entry in self._entries if kept(entry)]
