"""What has been decided and is not yet committed: entries in arrival order, their rows in an overlay.

Entries of a partition number are committed in the order they came, over all topics: a later one may have
read rows of an earlier one. Different partition numbers do not wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from streams.changes import LANE, POSITION, Change, Writes, store_key
from streams.layout import Layout
from streams.ports import TP, Outgoing, Write


class Entry:
    """One message on its way, and later what it decided. `done` once its handlers have finished."""

    __slots__ = ("changes", "done", "next_offset", "partition", "sends", "tp")

    def __init__(self, partition: int, tp: TP | None, next_offset: int) -> None:
        """`tp` is None for what did not come from a topic, such as a timer."""
        self.partition = partition
        self.tp = tp
        self.next_offset = next_offset
        self.changes: list[Change] = []
        self.sends: list[tuple[str, int, Outgoing]] = []
        self.done = False


@dataclass(slots=True)
class Staged:
    """One transaction to be: records by partition, source positions, and the changes to apply after it."""

    records: dict[TP, list[Outgoing]] = field(default_factory=dict)
    offsets: dict[TP, int] = field(default_factory=dict)
    changes: dict[tuple[str, int, bytes], Change] = field(default_factory=dict)
    messages: int = 0


class Overlay:
    """Rows staged but not yet in the store: the newest change of each, by table and local key."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[bytes, Change]] = {}

    def get(self, table: str, key: bytes) -> Change | None:
        """The staged change of a local key; one with value None is a deletion."""
        rows = self._tables.get(table)
        return None if rows is None else rows.get(key)

    def put(self, partition: int, change: Change) -> None:
        """Stage a change: later reads see it."""
        rows = self._tables.get(change.table)
        if rows is None:
            rows = self._tables[change.table] = {}
        rows[store_key(partition, change.key)] = change

    def forget(self, staged: Staged) -> None:
        """Drop changes that have reached the store, except where a newer one has come since."""
        for (table, partition, key), change in staged.changes.items():
            rows = self._tables.get(table, {})  # source positions are staged, but never read back
            local = store_key(partition, key)
            if rows.get(local) is change:
                del rows[local]

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))


class Sequences:
    """Entries in arrival order for each partition number."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._queues: dict[int, deque[Entry]] = {}
        self._changelogs: dict[tuple[str, int], TP] = {}
        self.backlog = 0

    def add(self, entry: Entry) -> None:
        """Take an entry's place in the order; it may finish later."""
        queue = self._queues.get(entry.partition)
        if queue is None:
            queue = self._queues[entry.partition] = deque()
        queue.append(entry)
        self.backlog += 1

    def has_finished(self) -> bool:
        """Whether anything could be committed now."""
        return any(queue and queue[0].done for queue in self._queues.values())

    def first_offsets(self) -> dict[TP, int]:
        """Where the uncommitted work begins, to recognise a commit that fails again and again."""
        return {q[0].tp: q[0].next_offset for q in self._queues.values() if q and q[0].tp is not None}

    def take(self, limit: int) -> Staged:
        """Stage the finished prefix of every partition, `limit` messages at most."""
        staged = Staged()
        for entry in self._finished(limit):
            self._stage(staged, entry)
        self.backlog -= staged.messages
        for (table, partition, key), change in staged.changes.items():
            records = staged.records.setdefault(self._changelog(table, partition), [])
            records.append(Outgoing(key, change.value, ()))
        for tp, offset in staged.offsets.items():
            position = Change(LANE, POSITION + tp.topic.encode(), b"%d" % offset)
            staged.changes[LANE, tp.partition, position.key] = position
            records = staged.records.setdefault(self._changelog(LANE, tp.partition), [])
            records.append(Outgoing(position.key, position.value, ()))
        return staged

    def _finished(self, limit: int) -> Iterator[Entry]:
        for partition in list(self._queues):
            queue = self._queues[partition]
            while queue and queue[0].done:
                if limit == 0:
                    return
                limit -= 1
                yield queue.popleft()
            self._queues[partition] = self._queues.pop(partition)  # next time the others come first

    @staticmethod
    def _stage(staged: Staged, entry: Entry) -> None:
        partition, records = entry.partition, staged.records
        for change in entry.changes:  # of a row changed twice, only the last state goes to the changelog
            staged.changes[change.table, partition, change.key] = change
        for topic, to, outgoing in entry.sends:
            tp = TP(topic, to)
            queue = records.get(tp)
            if queue is None:
                queue = records[tp] = []
            queue.append(outgoing)
        if entry.tp is not None:
            staged.offsets[entry.tp] = entry.next_offset
        staged.messages += 1

    def _changelog(self, table: str, partition: int) -> TP:
        tp = self._changelogs.get((table, partition))
        if tp is None:
            tp = self._changelogs[table, partition] = TP(self._layout.changelog(table), partition)
        return tp


def writes_of(staged: Staged, writes: Writes) -> Iterator[Write]:
    """The store's writes for a committed transaction, made as recovery would make them."""
    grouped: dict[tuple[str, int], list[tuple[bytes, bytes | None]]] = {}
    for (table, partition, key), change in staged.changes.items():
        grouped.setdefault((table, partition), []).append((key, change.value))
    for (table, partition), records in grouped.items():
        yield from writes.of(table, partition, records)
