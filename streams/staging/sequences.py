"""What has been decided and is not yet committed: entries in arrival order, their rows in an overlay.

Entries of a key are committed in the order they came, over all topics: a later one may have read rows of an
earlier one. Other keys, and other partition numbers, do not wait (docs/adr/0044-only-keys-wait.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streams.model.layout import INBOX, LANE, Layout
from streams.ports import TP, Batch, Headers, Outgoing, Record, Write
from streams.staging.changes import IDS_BYTES, Change, Writes, pack_ids
from streams.staging.keys import PARTITION, POSITION, position_name, prefix_of
from streams.staging.loops import Sent
from streams.staging.position import Ahead, Range, encode_position

#: Ranges that are kept above a position at most, and keys that others pass by.
MOST_RANGES = 256
MOST_KEYS = 4_096
#: Bytes of Python's objects beside those of the data in them, about: of an entry, of a change in it, and of
#: what it sends. A worker's resident memory by its backlog says so (docs/adr/0008-bounded-memory.md).
ENTRY_BYTES, CHANGE_BYTES, SEND_BYTES = 400, 350, 900
NOTHING_AHEAD: Mapping[TP, Collection[Range]] = {}
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
        "ahead",
        "changes",
        "counted",
        "done",
        "head",
        "key",
        "looped",
        "messages",
        "next_offset",
        "offset",
        "partition",
        "prefix",
        "sends",
        "size",
        "taken",
        "timer",
        "timestamp",
        "tp",
    )

    def __init__(
        self,
        partition: int,
        tp: TP | None,
        next_offset: int,
        size: int = 0,
        key: bytes | None = None,
        offset: int = -1,
    ) -> None:
        """`tp` is None for what did not come from a topic, such as a timer; `size` is in bytes. Without a key
        it waits for all that came before, and all that comes after waits for it.
        """
        self.key = key
        self.offset = offset
        #: Of a message that has waited: its queue, by local key, and its number there.
        self.head: tuple[bytes, int] | None = None
        #: Of a timer: its name.
        self.timer: bytes | None = None
        #: Whether it was committed before another one of its topic that had come before it.
        self.ahead = False
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
        #: Those of them that its lane may handle before it has read them, until it has tried.
        self.looped: list[Sent] | None = None
        #: What is handled in it: its own message, and those of them that were.
        self.messages = 1
        self.done = False
        self.taken = False

    @property
    def weight(self) -> int:
        """Bytes that it and what it decided take in memory, about."""
        size = self.size + ENTRY_BYTES
        for local, change in self.changes:
            size += CHANGE_BYTES + len(local) + len(change.value or b"")
        for _, outgoing in self.sends:
            size += SEND_BYTES + len(outgoing.key or b"") + len(outgoing.value or b"")
            headers: Any = outgoing.headers  # as above
            for name, data in headers:
                size += len(name) + len(data or b"")
        return size


@dataclass(slots=True)
class Staged:
    """One transaction to be: records by partition, source positions, and the changes to apply after it,
    by table and local key: of a row that was changed twice, only the last state goes to the changelog.
    `last` is the entry that was staged last.
    """

    records: dict[TP, list[Outgoing]] = field(default_factory=dict)
    offsets: dict[TP, int] = field(default_factory=dict)
    changes: dict[str, dict[bytes, Change]] = field(default_factory=dict)
    messages: int = 0
    #: Those, and what was looped with them.
    handled: int = 0
    last: Entry | None = None


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

    def restore(self, key: bytes, table: str, change: Change | None) -> None:
        """Take a change back: `change` was the newest one before, if there was any."""
        if change is not None:
            self._tables[table][key] = change
        else:
            del self._tables[table][key]

    def forget(self, staged: Staged) -> None:
        """Drop changes that have reached the store, except where a newer one has come since."""
        for table, changes in staged.changes.items():
            rows = self._tables.get(table, {})  # source positions are staged, but never read back
            for key, change in changes.items():
                if rows.get(key) is change:
                    del rows[key]

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))


class _Look:
    """A look along the entries of a partition number, in order: which may go, though others do not.

    Attributes:
        first, last: by topic, the offsets of the first and the last entry that stays.
    """

    def __init__(self, max_ahead: int, ahead: Mapping[TP, Ahead]) -> None:
        self.first: dict[TP, int] = {}
        self.last: dict[TP, int] = {}
        self._keys: set[bytes] = set()
        self._max_ahead = max_ahead
        self._ahead = ahead

    def may_go(self, entry: Entry) -> bool:
        """Whether an entry is done, and nothing of its key stays."""
        if not entry.done or entry.key is None or entry.key in self._keys:
            return False
        first = None if entry.tp is None else self.first.get(entry.tp)
        return first is None or self._has_room(entry, first)

    def _has_room(self, entry: Entry, first: int) -> bool:
        assert entry.tp is not None
        ahead = self._ahead.get(entry.tp)
        return entry.next_offset - first <= self._max_ahead and (ahead is None or len(ahead) < MOST_RANGES)

    def waits(self, entry: Entry) -> bool:
        """An entry stays. False: so does all that comes after it."""
        if entry.key is None or self._max_ahead == 0 or len(self._keys) == MOST_KEYS:
            return False
        self._keys.add(entry.key)
        if entry.tp is not None:
            self.first.setdefault(entry.tp, entry.offset)
            self.last[entry.tp] = entry.offset
        return True


class Sequences:
    """Entries in arrival order for each partition number."""

    def __init__(self, layout: Layout, ids_bytes: int = IDS_BYTES, max_ahead: int = 0) -> None:
        """`ids_bytes` is what a record of the inbox's changelog has at most, or one entry more. `max_ahead`
        is how far above a position messages are committed while it is held up, in offsets; 0: they wait.
        """
        self._layout = layout
        self._max_ahead = max_ahead
        #: What is handled above positions, where there is anything; and where the last of it ended that came.
        self._ahead: dict[TP, Ahead] = {}
        self._ahead_to: dict[TP, int] = {}
        #: Partition numbers in which something has finished that was not looked at since.
        self._finished_in: set[int] = set()
        self._ids_bytes = ids_bytes
        self._queues: dict[int, deque[Entry]] = {}
        self._changelogs: dict[str, dict[bytes, TP]] = {}
        self._newest: dict[TP, Entry] = {}
        self._passed: dict[TP, int] = {}
        #: Whether positions have moved over messages that were handled when they were written.
        self.has_looped = False
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
        if entry.done:
            self._finished_in.add(entry.partition)
        if entry.tp is not None:
            before = self._newest.get(entry.tp)
            # Between the two there is nothing but markers, and what was handled before it was read.
            if before is not None and not before.taken and before.next_offset < entry.offset:
                before.next_offset = entry.offset
            self._newest[entry.tp] = entry

    def finished(self, entry: Entry) -> None:
        """An entry that was added has decided, and is done."""
        entry.done = True
        self._count(entry)
        self._finished_in.add(entry.partition)

    def _count(self, entry: Entry) -> None:
        self.backlog_bytes -= entry.counted
        entry.counted = entry.weight
        self.backlog_bytes += entry.counted

    def pass_by(self, tp: TP, offset: int) -> None:
        """Only markers came up to `offset`. The position follows with the next transaction, or with one of
        its own when the lane is idle: a log that was cut up to here has lost nothing.
        """
        newest = self._newest.get(tp)
        if newest is not None and not newest.taken:
            newest.next_offset = offset
        elif newest is not None and newest.ahead and self._is_held_up(tp):
            self._ahead[tp].add(newest.next_offset, offset)
            newest.next_offset = self._ahead_to[tp] = offset
        else:
            self._passed[tp] = offset

    def _is_held_up(self, tp: TP) -> bool:
        return any(entry.tp == tp for entry in self._queues.get(self._layout.home_of(tp.partition), ()))

    def begin(
        self,
        positions: Mapping[TP, int],
        changes: Mapping[bytes, Change],
        ahead: Mapping[TP, Collection[Range]] = NOTHING_AHEAD,
    ) -> None:
        """What the first transaction records beside what it handles, or alone when nothing comes: where
        partitions begin that have no position yet, and changes of the lane's own table by local key.
        `ahead` is what was handled above the positions from which the lane reads.
        """
        self._passed |= positions
        self._first = dict(changes)
        self._ahead = {tp: Ahead(ranges) for tp, ranges in ahead.items() if ranges}

    def record(self, changes: Mapping[bytes, Change]) -> None:
        """Further changes that the next transaction records, as above."""
        if changes:
            self._first |= changes

    def unseen(self, batch: Batch) -> Batch:
        """What was read, without what was handled ahead of the position."""
        ahead = self._ahead.get(batch.tp)
        if ahead is None:
            return batch
        records = [record for record in batch.records if record.offset not in ahead]
        return Batch(batch.tp, records, batch.next_offset)

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
        if any(queue and queue[0].done for queue in self._queues.values()):
            return True
        return any(self._has_free(partition) for partition in list(self._finished_in))

    def _has_free(self, partition: int) -> bool:
        """Whether something in a partition number could be committed before what holds it up."""
        look = _Look(self._max_ahead, self._ahead)
        for entry in self._queues.get(partition, ()):
            if look.may_go(entry):
                return True
            if not look.waits(entry):
                break
        self._finished_in.discard(partition)
        return False

    def take(self, limit: int, max_bytes: int = 1 << 62) -> Staged:
        """Stage what has finished in every partition, as far as nothing of its key holds it up: `limit`
        messages at most, those that were looped included, and no more once they came to `max_bytes`.
        """
        staged = Staged(offsets=self._passed)
        self._passed, self.has_looped = {}, False
        if self._first:
            staged.changes[LANE], self._first = self._first, {}
        self._oldest_in_commit = self._oldest_head()
        before = self.backlog_bytes
        for entry in self._finished(staged, limit, max_bytes):
            self._stage(staged, entry)
        self.backlog -= staged.messages
        self.in_commit, self.in_commit_bytes = staged.messages, before - self.backlog_bytes
        for tp, offset in staged.offsets.items():
            key = POSITION + position_name(tp, self._layout.partitions)
            changes = staged.changes.setdefault(LANE, {})
            value = b"%d" % offset if tp not in self._ahead else self._reach(staged, tp)
            changes[prefix_of(self._layout.home_of(tp.partition)) + key] = Change(LANE, key, value)
        for table, changes in staged.changes.items():
            self._log(table, changes, staged.records)
        return staged

    def _reach(self, staged: Staged, tp: TP) -> bytes:
        """Move a position over what was handled ahead of it. Returns how it is kept."""
        ahead = self._ahead[tp]
        offset = staged.offsets[tp] = ahead.reached(staged.offsets[tp])
        if not ahead:
            del self._ahead[tp]
            self._ahead_to.pop(tp, None)
        return encode_position(offset, ahead.ranges)

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

    def _finished(self, staged: Staged, limit: int, max_bytes: int) -> Iterator[Entry]:
        for partition in list(self._queues):
            if limit <= 0 or max_bytes <= 0:
                return
            queue = self._queues[partition] = self._queues.pop(partition)  # next time the others come first
            while max_bytes > 0 and queue and queue[0].done and _fits(queue[0], limit, staged.messages):
                entry = queue.popleft()
                limit -= entry.messages
                max_bytes -= entry.counted
                self.backlog_bytes -= entry.counted
                yield entry
            if queue and partition in self._finished_in:
                free = self._free(staged, partition, limit, max_bytes)
                for entry in free:
                    limit -= entry.messages
                    max_bytes -= entry.counted
                    self.backlog_bytes -= entry.counted
                    yield entry

    def _free(self, staged: Staged, partition: int, limit: int, max_bytes: int) -> list[Entry]:
        """Take out what nothing of its key holds up, from behind what holds up the partition number."""
        if limit <= 0 or max_bytes <= 0 or not self._has_free(partition):
            return []
        look = _Look(self._max_ahead, self._ahead)
        free: list[Entry] = []
        queue, rest = self._queues[partition], deque[Entry]()
        while queue:
            entry = queue.popleft()
            fits = max_bytes > 0 and _fits(entry, limit, staged.messages + len(free))
            if fits and look.may_go(entry):
                limit -= entry.messages
                max_bytes -= entry.counted
                self._went_ahead(staged, entry, look)
                free.append(entry)
                continue
            rest.append(entry)
            if not look.waits(entry):
                break
        rest.extend(queue)
        self._queues[partition] = rest
        return free

    def _went_ahead(self, staged: Staged, entry: Entry, look: _Look) -> None:
        """An entry is committed before others: the position of its topic stays, and says so."""
        tp = entry.tp
        if tp is None or tp not in look.first:
            return
        entry.ahead = True
        ahead = self._ahead.setdefault(tp, Ahead())
        # Between two that came one after the other there is nothing but markers.
        follows = self._ahead_to.get(tp, -1)
        ahead.add(follows if look.last[tp] < follows <= entry.offset else entry.offset, entry.next_offset)
        self._ahead_to[tp] = entry.next_offset
        staged.offsets[tp] = look.first[tp]

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
        if entry.tp is not None and not entry.ahead:
            staged.offsets[entry.tp] = entry.next_offset
        staged.messages += 1
        staged.handled += entry.messages
        staged.last = entry

    def _changelog(self, table: str, prefix: bytes) -> TP:
        partitions = self._changelogs.setdefault(table, {})
        tp = partitions.get(prefix)
        if tp is None:
            tp = partitions[prefix] = TP(self._layout.changelog(table), int.from_bytes(prefix, "big"))
        return tp


def _fits(entry: Entry, limit: int, before: int) -> bool:
    """Whether a transaction that has `before` entries takes one more, with `limit` messages left: its first
    one it takes in any case.
    """
    return entry.messages <= limit or not before


def writes_of(staged: Staged, writes: Writes) -> Iterator[Write]:
    """The store's writes for a committed transaction, made as recovery would make them."""
    for table, changes in staged.changes.items():
        yield from writes.local(table, [(key, change.value) for key, change in changes.items()])
