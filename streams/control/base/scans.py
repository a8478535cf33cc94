"""Scans of topics, and what was found there: the port of a reader, in values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from streams.model.envelope import CAUSATION, CORRELATION, ID
from streams.model.row_keys import split_row_key
from streams.ports import TP, Record
from streams.units import MIB

#: Records looked at for one answer at most. Most are passed over by the batch, unread.
MOST_RECORDS = 500_000
#: Seconds for one answer at most.
MOST_SECONDS = 5.0
#: Records found at most, and bytes of them.
MOST_FOUND = 1_000
MOST_FOUND_BYTES = 8 * MIB
_IDS = frozenset((ID, CORRELATION, CAUSATION))


class Question(NamedTuple):
    """Which records are meant.

    Attributes:
        partitions: where they are looked for.
        since_ms: from when on, epoch milliseconds, by the time index of each partition.
        wanted: each a key, or the id, correlation id or causation id of a message.
        most: records to look at.
        seconds: how long to look.
        rows: whether the topics are changelogs of tables: then the rows of the keys are meant.
    """

    partitions: tuple[TP, ...]
    since_ms: int
    wanted: tuple[bytes, ...]
    most: int = MOST_RECORDS
    seconds: float = MOST_SECONDS
    rows: bool = False

    def means(self, record: Record) -> bool:
        """Whether a record is meant."""
        if self.rows:
            return record.key is not None and split_row_key(record.key)[0] in self.wanted
        return record.key in self.wanted or any(
            name in _IDS and value in self.wanted for name, value in record.headers
        )


class Scan(NamedTuple):
    """The result of a scan.

    Attributes:
        records: in no order.
        looked: at how many offsets.
        partitions: how many had anything since then.
        until_ms: what is older was looked at in every partition; None: all, up to the committed end.
        stopped: why not all; empty: all was.
    """

    records: list[Record]
    looked: int
    partitions: int
    until_ms: int | None = None
    stopped: str = ""


def joined(first: Scan, second: Scan) -> Scan:
    """Two scans of the same time as one: each record once."""
    by_place = {(each.topic, each.partition, each.offset): each for each in first.records + second.records}
    ends = [each for each in (first.until_ms, second.until_ms) if each is not None]
    return Scan(
        list(by_place.values()),
        first.looked + second.looked,
        max(first.partitions, second.partitions),
        min(ends, default=None),
        first.stopped or second.stopped,
    )


def size_of(records: Iterable[Record]) -> int:
    """Bytes of their values."""
    return sum(len(record.value or b"") for record in records)
