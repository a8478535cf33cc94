"""What has been decided and is not yet committed: entries in arrival order, their rows in an overlay.

Entries of a partition number are committed in the order they came, over all topics: a later one may have
read rows of an earlier one. Different partition numbers do not wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streams.model.layout import INBOX, LANE, Layout
from streams.ports import TP, Headers, Outgoing, Record, Write
from streams.staging.changes import IDS_BYTES, Change, Writes, pack_ids
from streams.staging.keys import PARTITION, POSITION, prefix_of

NO_HEADERS: list[tuple[str, bytes]] = []

#: See `changes._write`.
_outgoing: Callable[[tuple[bytes | None, bytes | None, Headers]], Outgoing] = partial(tuple.__new__, Outgoing)


def size_of(record: Record) -> int:
    """Bytes of its key, value and headers."""
    size = len(record.key or b"") + len(record.value or b"")
    headers: Any = record.headers  # a client's may be None, which compiled code takes for no bytes else
    for name, value in headers:
        size += len(name) + len(value or b"")
    return size


class Entry:
    """One message on its way, and later what it decided. `done` once its handlers have finished."""

    __slots__ = (
        "changes",
        "counted",
        "done",
        "next_offset",
        "partition",
        "prefix",
        "sends",
        "size",
        "taken",
        "timestamp",
        "tp",
    )

    def __init__(self, partition: int, tp: TP | None, next_offset: int, size: int = 0) -> None:
        """`tp` is None for what did not come from a topic, such as a timer; `size` is in bytes."""
        self.partition = partition
        self.prefix = prefix_of(partition)
        self.tp = tp
        self.next_offset = next_offset
        self.size = size
        #: When its message was written, epoch milliseconds; 0 of what is none.
        self.timestamp = 0
        #: Bytes that its sequence counts for it.
        self.counted = 0
        #: Each with its local key, which several steps need.
        self.changes: list[tuple[bytes, Change]] = []
        self.sends: list[tuple[TP, Outgoing]] = []
        self.done = False
        self.taken = False

    @property
    def weight(self) -> int:
        """Bytes of it and of what it decided."""
        size = self.size
        for local, change in self.changes:
            size += len(local) + len(change.value or b"")
        for _, outgoing in self.sends:
            size += len(outgoing.key or b"") + len(outgoing.value or b"")
            headers: Any = outgoing.headers  # as above
            for name, data in headers:
                size += len(name) + len(data or b"")
        return size


@dataclass(slots=True)
class Staged:
    """One transaction to be: records by partition, source positions, and the changes to apply after it,
    by table and local key: of a row that was changed twice, only the last state goes to the changelog.
    """

    records: dict[TP, list[Outgoing]] = field(default_factory=dict)
    offsets: dict[TP, int] = field(default_factory=dict)
    changes: dict[str, dict[bytes, Change]] = field(default_factory=dict)
    messages: int = 0


class Overlay:
    """Rows staged but not yet in the store: the newest change of each, by table and local key."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[bytes, Change]] = {}

    def get(self, table: str, key: bytes) -> Change | None:
        """The staged change of a local key; one with value None is a deletion."""
        rows = self._tables.get(table)
        return None if rows is None else rows.get(key)

    def put(self, key: bytes, change: Change) -> None:
        """Stage a change under its local key: later reads see it."""
        rows = self._tables.get(change.table)
        if rows is None:
            rows = self._tables[change.table] = {}
        rows[key] = change

    def changes(self, table: str) -> Iterator[tuple[bytes, Change]]:
        """Every staged change of a table, with its local key."""
        return iter(self._tables.get(table, {}).items())

    def forget(self, staged: Staged) -> None:
        """Drop changes that have reached the store, except where a newer one has come since."""
        for table, changes in staged.changes.items():
            rows = self._tables.get(table, {})  # source positions are staged, but never read back
            for key, change in changes.items():
                if rows.get(key) is change:
                    del rows[key]

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))


class Sequences:
    """Entries in arrival order for each partition number."""

    def __init__(self, layout: Layout, ids_bytes: int = IDS_BYTES) -> None:
        """`ids_bytes` is what a record of the inbox's changelog has at most, or one entry more."""
        self._layout = layout
        self._ids_bytes = ids_bytes
        self._queues: dict[int, deque[Entry]] = {}
        self._changelogs: dict[str, dict[bytes, TP]] = {}
        self._newest: dict[TP, Entry] = {}
        self._passed: dict[TP, int] = {}
        self._first: dict[bytes, Change] = {}
        #: Taken and not yet staged for a commit.
        self.backlog = 0
        self.backlog_bytes = 0
        #: Staged, and not known to be committed.
        self.in_commit = 0
        self.in_commit_bytes = 0
        self._oldest_in_commit = 0

    def add(self, entry: Entry) -> None:
        """Take an entry's place in the order; it may finish later: see `finished`."""
        queue = self._queues.get(entry.partition)
        if queue is None:
            queue = self._queues[entry.partition] = deque()
        queue.append(entry)
        self.backlog += 1
        self._count(entry)

    def finished(self, entry: Entry) -> None:
        """An entry that was added has decided, and is done."""
        entry.done = True
        self._count(entry)

    def _count(self, entry: Entry) -> None:
        self.backlog_bytes -= entry.counted
        entry.counted = entry.weight
        self.backlog_bytes += entry.counted

    def end_of_batch(self, tp: TP, entry: Entry) -> None:
        """`entry` is the last one of what was read so far."""
        self._newest[tp] = entry

    def pass_by(self, tp: TP, offset: int) -> None:
        """Only markers came up to `offset`. The position follows with the next transaction, or with one of
        its own when the lane is idle: a log that was cut up to here has lost nothing.
        """
        newest = self._newest.get(tp)
        if newest is not None and not newest.taken:
            newest.next_offset = offset
        else:
            self._passed[tp] = offset

    def begin(self, positions: Mapping[TP, int], changes: Mapping[bytes, Change]) -> None:
        """What the first transaction records beside what it handles, or alone when nothing comes: where
        partitions begin that have no position yet, and changes of the lane's own table by local key.
        """
        self._passed |= positions
        self._first = dict(changes)

    @property
    def has_passed(self) -> bool:
        """Whether positions have moved over markers alone, or have still to be recorded."""
        return bool(self._passed or self._first)

    @property
    def has_first(self) -> bool:
        """Whether what is recorded first is not committed yet."""
        return bool(self._first)

    def is_over(self, messages: int, size: int) -> bool:
        """Whether so many messages wait to be staged, or so many bytes are held."""
        return self.backlog >= messages or self.held_bytes >= size

    def has_finished(self) -> bool:
        """Whether anything could be committed now."""
        return any(queue and queue[0].done for queue in self._queues.values())

    def take(self, limit: int, max_bytes: int = 1 << 62) -> Staged:
        """Stage the finished prefix of every partition: `limit` messages at most, and no more once they came
        to `max_bytes`.
        """
        staged = Staged(offsets=self._passed)
        self._passed = {}
        if self._first:
            staged.changes[LANE], self._first = self._first, {}
        self._oldest_in_commit = self._oldest_head()
        before = self.backlog_bytes
        for entry in self._finished(limit, max_bytes):
            self._stage(staged, entry)
        self.backlog -= staged.messages
        self.in_commit, self.in_commit_bytes = staged.messages, before - self.backlog_bytes
        for tp, offset in staged.offsets.items():
            key = POSITION + tp.topic.encode()
            changes = staged.changes.setdefault(LANE, {})
            changes[prefix_of(tp.partition) + key] = Change(LANE, key, b"%d" % offset)
        for table, changes in staged.changes.items():
            self._log(table, changes, staged.records)
        return staged

    def committed(self) -> None:
        """What was staged last is committed."""
        self.in_commit = self.in_commit_bytes = self._oldest_in_commit = 0

    @property
    def held(self) -> int:
        """Messages taken and not yet committed."""
        return self.backlog + self.in_commit

    @property
    def oldest(self) -> int:
        """When the oldest of them was written, about, epoch milliseconds: of each partition the first counts;
        0 when there is none.
        """
        return self._oldest_in_commit or self._oldest_head()

    def _oldest_head(self) -> int:
        heads = (queue[0].timestamp for queue in self._queues.values() if queue)
        return min((timestamp for timestamp in heads if timestamp), default=0)

    @property
    def held_bytes(self) -> int:
        """Their bytes."""
        return self.backlog_bytes + self.in_commit_bytes

    def _log(self, table: str, changes: Mapping[bytes, Change], records: dict[TP, list[Outgoing]]) -> None:
        """Add the changelog records of a table's changes."""
        if table == INBOX:
            self._log_ids(changes, records)
            return
        queues: dict[bytes, list[Outgoing]] = {}
        for local, change in changes.items():
            queue = queues.get(local[:PARTITION])
            if queue is None:
                queue = queues[local[:PARTITION]] = records[self._changelog(table, local[:PARTITION])] = []
            queue.append(_outgoing((change.key, change.value, NO_HEADERS)))

    def _log_ids(self, changes: Mapping[bytes, Change], records: dict[TP, list[Outgoing]]) -> None:
        entries: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for local, change in changes.items():
            entries.setdefault(local[:PARTITION], []).append((change.key, change.value or b""))
        for prefix, pairs in entries.items():
            records[self._changelog(INBOX, prefix)] = [
                Outgoing(None, value, NO_HEADERS) for value in pack_ids(pairs, self._ids_bytes)
            ]

    def _finished(self, limit: int, max_bytes: int) -> Iterator[Entry]:
        for partition in list(self._queues):
            if limit == 0 or max_bytes <= 0:
                return
            queue = self._queues[partition] = self._queues.pop(partition)  # next time the others come first
            while limit and max_bytes > 0 and queue and queue[0].done:
                entry = queue.popleft()
                limit -= 1
                max_bytes -= entry.counted
                self.backlog_bytes -= entry.counted
                yield entry

    @staticmethod
    def _stage(staged: Staged, entry: Entry) -> None:
        records = staged.records
        for local, change in entry.changes:
            changes = staged.changes.get(change.table)
            if changes is None:
                changes = staged.changes[change.table] = {}
            changes[local] = change
        for tp, outgoing in entry.sends:
            queue = records.get(tp)
            if queue is None:
                queue = records[tp] = []
            queue.append(outgoing)
        entry.taken = True
        if entry.tp is not None:
            staged.offsets[entry.tp] = entry.next_offset
        staged.messages += 1

    def _changelog(self, table: str, prefix: bytes) -> TP:
        partitions = self._changelogs.setdefault(table, {})
        tp = partitions.get(prefix)
        if tp is None:
            tp = partitions[prefix] = TP(self._layout.changelog(table), int.from_bytes(prefix, "big"))
        return tp


def writes_of(staged: Staged, writes: Writes) -> Iterator[Write]:
    """The store's writes for a committed transaction, made as recovery would make them."""
    for table, changes in staged.changes.items():
        yield from writes.local(table, [(key, change.value) for key, change in changes.items()])
