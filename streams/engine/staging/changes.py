"""Changes to a lane's state: each is a changelog record, and the local store is a function of those records.

The same function makes the store's writes after a commit, in recovery and on a standby, so that a table
rebuilt from its changelog equals the copy that was written live.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import msgspec

from streams.engine.staging.keys import (
    HANDLER,
    IDENTITY,
    PLACE,
    POSITION,
    PRODUCERS,
    QUEUE,
    TIME,
    TIMER,
    WAITING,
    prefix_of,
    split_local_lane_key,
    time_in,
)
from streams.errors import ChangelogDamaged
from streams.model.layout import DEAD_LETTERS, INBOX, LANE
from streams.ports import Store, Write

Pair = tuple[bytes, bytes]

#: A local index of dead letters by their age.
DEAD_LETTERS_BY_AGE: Final = "_dead_letters_by_age"
#: Local tables made from the LANE changelog.
POSITIONS: Final = "_positions"
TIMERS: Final = "_timers"
TIMERS_BY_DUE: Final = "_timers_by_due"
QUEUES: Final = "_queues"
QUEUES_BY_DUE: Final = "_queues_by_due"
MESSAGES: Final = "_waiting"
HANDLERS: Final = "_handlers"
IDENTITIES: Final = "_identities"
OWN_PRODUCERS: Final = "_producers"
_TABLES: Final = {
    POSITION: POSITIONS,
    TIMER: TIMERS,
    QUEUE: QUEUES,
    WAITING: MESSAGES,
    HANDLER: HANDLERS,
    IDENTITY: IDENTITIES,
    PRODUCERS: OWN_PRODUCERS,
}
#: Local only, in no changelog: the topics that the store is a copy of.
COPY_OF: Final = "_copy_of"
#: Local only: for each changelog, the leader epoch in which it had what the store has.
LOG_MARKS: Final = "_log_marks"
#: Marks of rows that changed since they were indexed: table name, zero byte, local key. The code that shows
#: rows by status makes the index from them, in the other two tables (docs/adr/0039).
CHANGED: Final = "_changed"
STATUS_OF: Final = "_status_of"
BY_STATUS: Final = "_by_status"

#: Bytes of ids in one record of the inbox's changelog, about.
IDS_BYTES: Final = 64 << 10
_encode_ids: Final = msgspec.msgpack.Encoder().encode
_decode_ids: Final = msgspec.msgpack.Decoder(list[Pair]).decode


class Change:
    """A changelog record to write. A `value` of None deletes the row.

    Attributes:
        row: the decoded value, kept for later reads.
        local: its local key, once it is staged.
    """

    __slots__ = ("key", "local", "row", "table", "value")

    def __init__(self, table: str, key: bytes, value: bytes | None, row: Any = None) -> None:
        self.table = table
        self.key = key
        self.value = value
        self.row = row
        self.local = b""


def pack_ids(entries: Iterable[Pair], at_once: int = IDS_BYTES) -> Iterator[bytes]:
    """Pack inbox entries (key, value) into changelog records of about `at_once` bytes, because a transaction
    has thousands of entries. That changelog is not compacted, so its records need no keys.
    """
    packed: list[Pair] = []
    size = 0
    for entry in entries:
        packed.append(entry)
        size += len(entry[0]) + len(entry[1])
        if size >= at_once:
            yield _encode_ids(packed)
            packed, size = [], 0
    if packed:
        yield _encode_ids(packed)


def mark_of(table: str, local: bytes) -> bytes:
    """The key in CHANGED for a row."""
    return table.encode() + b"\0" + local


def unfollow(store: Store) -> None:
    """Drop the marks of changes and the index by status, when changes are no longer marked. Otherwise the
    index would be wrong once marking starts again.
    """
    for table in (CHANGED, STATUS_OF, BY_STATUS):
        store.drop(table)


class Writes:
    """Turns changelog records into writes to the local store."""

    def __init__(self, inbox_bucket: float, followed: Collection[str] = ()) -> None:
        """`inbox_bucket` is the length of an inbox time bucket, in seconds. Changes of rows in `followed`
        tables are marked in CHANGED.
        """
        self._bucket_ms = max(1, int(inbox_bucket * 1000))
        self._marks = {table: mark_of(table, b"") for table in followed}
        self._bucket: tuple[int, str] = (-1, "")

    def inbox_table(self, time_ms: int) -> str:
        """The local table for inbox entries made at a time, in epoch milliseconds."""
        number = time_ms // self._bucket_ms
        if number != self._bucket[0]:
            self._bucket = (number, f"_inbox-{number:08d}")
        return self._bucket[1]

    def of(
        self, table: str, partition: int, records: Iterable[tuple[bytes, bytes | None]]
    ) -> Iterator[Write]:
        """The writes for records of a table's changelog partition."""
        prefix = prefix_of(partition)
        if table == INBOX:
            try:
                pairs = [pair for _, value in records if value is not None for pair in _decode_ids(value)]
            except ValueError as error:  # without it, duplicates would be handled again
                raise ChangelogDamaged(
                    f"a record of the changelog of the inbox, partition {partition}, cannot be read: {error}."
                    ' See docs/operating.md, "A changelog is damaged".'
                ) from error
            return iter(self.ids(prefix, pairs))
        return self.local(table, [(prefix + key, value) for key, value in records])

    def local(self, table: str, changes: Iterable[tuple[bytes, bytes | None]]) -> Iterator[Write]:
        """The writes for changes whose keys are local already."""
        if table == LANE:
            return (write for key, value in changes for write in self._lane(key, value))
        if table == DEAD_LETTERS:
            return self._letters(changes)
        writes: list[Write] = [(table, key, value) for key, value in changes]
        mark = self._marks.get(table)
        if mark is not None:
            writes += [(CHANGED, mark + key, b"") for _, key, _ in writes]
        return iter(writes)

    def ids(self, prefix: bytes, pairs: Iterable[Pair]) -> list[Write]:
        """The writes for entries of the inbox; `prefix` is their partition's prefix in local keys."""
        writes: list[Write] = []
        table = ""
        last: bytes | None = None
        for key, value in pairs:
            time = value[:TIME]
            if time != last:  # many entries share a time
                table, last = self.inbox_table(time_in(time)), time
            writes.append((table, prefix + key, value[TIME:]))
        return writes

    def _letters(self, changes: Iterable[tuple[bytes, bytes | None]]) -> Iterator[Write]:
        mark = self._marks.get(DEAD_LETTERS)
        for key, value in changes:
            if mark is not None:
                yield (CHANGED, mark + key, b"")
            yield (DEAD_LETTERS, key, value)
            if value is not None:  # the time follows the version; stale index entries are found as in `_lane`
                yield (DEAD_LETTERS_BY_AGE, value[1 : 1 + TIME] + key, b"")

    def _lane(self, key: bytes, value: bytes | None) -> Iterator[Write]:
        kind, name = split_local_lane_key(key)
        if (table := _TABLES.get(kind)) is None:
            return
        yield (table, name, value)
        if kind == TIMER:
            if value is not None:  # the old entry of a moved or cancelled timer is dropped when it comes up
                yield (TIMERS_BY_DUE, value[:TIME] + name, b"")
        elif kind == QUEUE:
            if (mark := self._marks.get(QUEUES)) is not None:
                yield (CHANGED, mark + name, b"")
            # Old entries are dropped as above. A queue without a due time has none.
            if value is not None and any(value[TIME:PLACE]):
                yield (QUEUES_BY_DUE, value[:PLACE] + name, b"")
