"""What every lane's local store must hold, rebuilt from the changelogs alone, and how a copy differs from it.

The form of local rows is stated here a second time, on purpose: a mistake in how lanes write them would
otherwise be made on both sides of the comparison. Nothing has expired in either: ids are kept for days.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from chaos.evidence.stores import Copy, Rows
from streams.ports import TP

if TYPE_CHECKING:
    from streams.ports import Record

INBOX, LANE = "inbox", "lane"  # changelogs that every application has
_INBOX_BUCKET = "_inbox-"
_POSITIONS, _TIMERS, _TIMERS_BY_DUE = "_positions", "_timers", "_timers_by_due"
_DEAD_LETTERS, _DEAD_LETTERS_BY_AGE = "dead_letters", "_dead_letters_by_age"
_QUEUES, _QUEUES_BY_DUE, _WAITING = "_queues", "_queues_by_due", "_waiting"
_HANDLERS, _IDENTITIES, _CLAIMS = "_handlers", "_identities", "claims"
_PRODUCERS = "_producers"
_COPY_OF = "_copy_of"  # a note that no changelog has
_LOG_MARKS = "_log_marks"  # likewise
#: What a worker's pages make of the rows, in their own time.
_BY_STATUS = ("_changed", "_status_of", "_by_status")
_OF_LANE = {
    b"p": _POSITIONS,
    b"t": _TIMERS,
    b"q": _QUEUES,
    b"w": _WAITING,
    b"h": _HANDLERS,
    b"i": _IDENTITIES,
    b"o": _PRODUCERS,
}
_TIME = 8  # bytes of a time: when a message was handled, or a timer is due
_read_ids = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode  # many entries to one record


@dataclass
class Rebuilt:
    """The state of all lanes by the changelogs.

    Attributes:
        tables: lane -> local table -> rows; the inbox as one table.
        last: the offset of the last committed record of each changelog partition that has any.
    """

    lanes: int
    tables: dict[int, dict[str, Rows]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(dict)))
    last: dict[TP, int] = field(default_factory=dict)

    def add(self, table: str, record: Record) -> None:
        """The next record of a table's changelog."""
        self.last[TP(record.topic, record.partition)] = record.offset
        tables = self.tables[record.partition % self.lanes]
        prefix, key, value = record.partition.to_bytes(2, "big"), record.key or b"", record.value
        if table == INBOX:
            for name, entry in _read_ids(value or b""):
                tables[INBOX][prefix + name] = entry[_TIME:]
        elif table != LANE:
            _set(tables[table], prefix + key, value)
        elif (kind := key[:1]) in _OF_LANE:
            _set(tables[_OF_LANE[kind]], prefix + key[1:], value)

    def inbox(self) -> set[tuple[int, bytes]]:
        """Every entry: the partition and the key."""
        return {
            (int.from_bytes(key[:2], "big"), key[2:])
            for tables in self.tables.values()
            for key in tables[INBOX]
        }

    def objects(self) -> set[str]:
        """Names of the objects that rows keep."""
        return {key[2:].decode() for tables in self.tables.values() for key in tables[_CLAIMS]}

    def positions(self) -> dict[TP, int]:
        """Where the lanes' own changelog says that each source topic was read to."""
        return {
            _source(key): int(value.split()[0])
            for tables in self.tables.values()
            for key, value in tables[_POSITIONS].items()
        }

    def last_of(self, lane: int) -> dict[TP, int]:
        """`last` of the lane's partitions."""
        return {tp: last for tp, last in self.last.items() if tp.partition % self.lanes == lane}


def _source(key: bytes) -> TP:
    """What a position is of: a topic's partition of this number, or the one behind a colon that was added."""
    topic, _, added = key[2:].decode().partition(":")
    return TP(topic, int(added) if added else int.from_bytes(key[:2], "big"))


class Place(StrEnum):
    """How far a copy is, compared with its changelogs, by its own positions."""

    AT_END = "at the end"
    BEHIND = "behind"
    AHEAD = "ahead"


@dataclass(frozen=True)
class Compared:
    """A copy and how it differs from its changelogs; only one at their end is compared row by row."""

    name: str
    lane: int
    place: Place
    differences: tuple[str, ...] = ()
    rows: int = 0


def compare(copy: Copy, rebuilt: Rebuilt, ends: Mapping[TP, int]) -> Compared:
    """Byte for byte. `ends` are the changelogs' high watermarks."""
    ahead = tuple(
        f"{tp.topic}[{tp.partition}] at {position}, its end is {ends.get(tp, 0)}"
        for tp, position in copy.positions.items()
        if position > ends.get(tp, 0)
    )
    if ahead:
        return Compared(copy.name, copy.lane, Place.AHEAD, ahead)
    if any(copy.positions.get(tp, 0) <= last for tp, last in rebuilt.last_of(copy.lane).items()):
        return Compared(copy.name, copy.lane, Place.BEHIND)
    wanted = rebuilt.tables[copy.lane]
    found = list(_differences(_merged(copy.tables), wanted))
    rows = sum(map(len, wanted.values()))
    return Compared(copy.name, copy.lane, Place.AT_END, tuple(found), rows)


def _set(rows: Rows, key: bytes, value: bytes | None) -> None:
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value


def _merged(tables: Mapping[str, Rows]) -> dict[str, Rows]:
    """With the inbox's time buckets as one table."""
    merged: dict[str, Rows] = {INBOX: {}}
    for name, rows in tables.items():
        if name.startswith(_INBOX_BUCKET):
            merged[INBOX] |= rows
        else:
            merged[name] = rows
    return merged


def _differences(found: Mapping[str, Rows], wanted: Mapping[str, Rows]) -> Iterator[str]:
    indexes = {_TIMERS_BY_DUE, _QUEUES_BY_DUE, _DEAD_LETTERS_BY_AGE, _COPY_OF, _LOG_MARKS, *_BY_STATUS}
    for table in sorted((found.keys() | wanted.keys()) - indexes):
        yield from _rows_that_differ(table, found.get(table, {}), wanted.get(table, {}))
    due = {value[:_TIME] + key for key, value in wanted.get(_TIMERS, {}).items()}
    # An index entry more is that of a timer that was moved or cancelled: found stale when it comes up.
    yield from _named(_TIMERS_BY_DUE, due - found.get(_TIMERS_BY_DUE, {}).keys(), "is missing")
    heads = {value[:16] + key for key, value in wanted.get(_QUEUES, {}).items() if any(value[8:16])}
    yield from _named(_QUEUES_BY_DUE, heads - found.get(_QUEUES_BY_DUE, {}).keys(), "is missing")
    aged = {value[1 : 1 + _TIME] + key for key, value in wanted.get(_DEAD_LETTERS, {}).items()}
    yield from _named(_DEAD_LETTERS_BY_AGE, aged - found.get(_DEAD_LETTERS_BY_AGE, {}).keys(), "is missing")


def _rows_that_differ(table: str, found: Rows, wanted: Rows) -> Iterator[str]:
    if found == wanted:
        return
    yield from _named(table, wanted.keys() - found.keys(), "is missing")
    yield from _named(table, found.keys() - wanted.keys(), "is not in the changelog")
    both = found.keys() & wanted.keys()
    yield from _named(table, {key for key in both if found[key] != wanted[key]}, "differs")


def _named(table: str, keys: Iterable[bytes], how: str) -> Iterator[str]:
    return (f"{table} {key!r} {how}" for key in sorted(keys))
