"""Pages of a topic's log, and what is read there: the port of a reader, in values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from streams.model.row_keys import split_row_key
from streams.ports import TP, Record
from streams.units import MIB

#: Seconds for one page at most.
MOST_SECONDS = 3.0
#: Bytes of keys and values that are read for one page at most.
MOST_BYTES = 16 * MIB
#: Offsets that are looked at for one page at most, where a key is looked for.
MOST_OFFSETS = 500_000


class LogRange(NamedTuple):
    """A partition's log: offsets.

    Attributes:
        begin: the first one that is still there.
        stable: behind the last one that a reader of what is committed gets to.
        end: behind the last one that was written. Between the two a transaction is open.
        recent: the first one of the last minute; `end` where there is none.
    """

    begin: int
    stable: int
    end: int
    recent: int


class TopicFacts(NamedTuple):
    """The properties of a topic. `config` has broker settings by their Kafka names."""

    partitions: int
    replication: int
    config: Mapping[str, str]


class Window(NamedTuple):
    """A page of a topic's records.

    Attributes:
        partitions: of one topic.
        places: offsets that the page begins at, or, backwards, ends before; where none is given, the
            beginning of the log, or its end.
        backwards: the newest come first.
        limit: records on the page.
        since_ms: not before this time, epoch milliseconds, by the time index; forwards only.
        key: of its records alone.
        rows: whether the topic is a changelog, where a record's key is that of a row, and of its sub-rows.
        row: of these the one with this key in the changelog.
    """

    partitions: tuple[TP, ...]
    places: Mapping[TP, int]
    backwards: bool
    limit: int
    since_ms: int | None = None
    key: bytes | None = None
    rows: bool = False
    row: bytes | None = None

    def means(self, record: Record) -> bool:
        """Whether a record is meant."""
        if self.row is not None:
            return record.key == self.row
        if self.key is None or record.key is None:
            return self.key is None
        return self.key == (split_row_key(record.key)[0] if self.rows else record.key)


class ReadPage(NamedTuple):
    """A page that was read.

    Attributes:
        records: in order, the newest first or the oldest.
        spans: by partition, the offsets that the page covers: from the first on, before the second.
        logs: as they were.
        looked: at how many offsets.
        stopped: why not all of the page could be read; empty: it was.
    """

    records: list[Record]
    spans: dict[TP, tuple[int, int]]
    logs: dict[TP, LogRange]
    looked: int
    stopped: str = ""


class ReadPart(NamedTuple):
    """Records of a partition: all that the window names between two offsets, in order."""

    records: Sequence[Record]
    first: int
    behind: int


def page_of(
    parts: Mapping[TP, ReadPart], *, limit: int, backwards: bool
) -> tuple[list[Record], dict[TP, tuple[int, int]]]:
    """The first records of all partitions by time, each partition's in order of their offsets, and the span
    of each partition that they stand for.
    """
    left = {tp: list(part.records)[:: 1 if backwards else -1] for tp, part in parts.items()}
    nearest: Callable[..., TP] = max if backwards else min
    taken: list[Record] = []
    while len(taken) < limit and (some := {tp: last[-1].timestamp for tp, last in left.items() if last}):
        taken.append(left[nearest(some, key=lambda tp: (some[tp], tp))].pop())
    spans = {}
    for tp, (_, first, behind) in parts.items():
        if not left[tp]:
            spans[tp] = first, behind
        elif backwards:
            spans[tp] = left[tp][-1].offset + 1, behind
        else:
            spans[tp] = first, left[tp][-1].offset
    return taken, spans
