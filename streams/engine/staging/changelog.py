"""The content of one transaction: records for changelogs and topics, and the later writes to the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from streams.engine.staging.changes import IDS_BYTES, Change, Pair, Writes, pack_ids
from streams.engine.staging.entry import Entry
from streams.engine.staging.keys import PARTITION
from streams.model.layout import INBOX, Layout
from streams.ports import TP, Headers, Outgoing, Sendable, Write

NO_HEADERS: Final[list[tuple[str, bytes]]] = []

#: Faster than Outgoing's constructor, which is a Python function: there is a record for each change.
new_outgoing: Final[Callable[[tuple[bytes | None, bytes | None, Headers]], Outgoing]] = partial(
    tuple.__new__, Outgoing
)


@dataclass(slots=True)
class Staged:
    """The content of one transaction. If a row was changed twice, it has only the last state.

    Attributes:
        records: the records that it sends, by partition.
        offsets: the source positions that it commits.
        changes: the changes to write to the store after it, by table and local key.
        ids: entries of the inbox, by the prefix of their partition in local keys.
        messages: number of entries.
        handled: number of messages handled in these entries, including looped ones.
        last: the entry that was added last.
    """

    records: dict[TP, list[Sendable]] = field(default_factory=dict)
    offsets: dict[TP, int] = field(default_factory=dict)
    changes: dict[str, dict[bytes, Change]] = field(default_factory=dict)
    ids: dict[bytes, list[Pair]] = field(default_factory=dict)
    messages: int = 0
    handled: int = 0
    last: Entry | None = None

    def add(self, entry: Entry, *, moves: bool = True) -> None:
        """Add the content of an entry. It `moves` its partition's position unless an earlier entry stays."""
        records = self.records
        for change in entry.changes:
            changes = self.changes.get(change.table)
            if changes is None:
                changes = self.changes[change.table] = {}
            changes[change.local] = change
        if entry.ids:
            pairs = self.ids.get(entry.prefix)
            if pairs is None:
                pairs = self.ids[entry.prefix] = []
            pairs += entry.ids
        for tp, outgoing in entry.sends:
            queue = records.get(tp)
            if queue is None:
                queue = records[tp] = []
            queue.append(outgoing)
        entry.in_commit = True
        if entry.tp is not None and moves:
            self.offsets[entry.tp] = entry.next_offset
        self.messages += 1
        self.handled += entry.messages
        self.last = entry


class Changelogs:
    """Makes the changelog records of an application's changes."""

    def __init__(self, layout: Layout, ids_bytes: int = IDS_BYTES) -> None:
        """`ids_bytes` bounds a record of the inbox's changelog; the last entry may exceed it."""
        self._layout = layout
        self._ids_bytes = ids_bytes
        self._partitions: dict[str, dict[bytes, TP]] = {}

    def add(self, table: str, changes: Mapping[bytes, Change], records: dict[TP, list[Sendable]]) -> None:
        """Add the changelog records of a table's changes."""
        queues: dict[bytes, list[Sendable]] = {}
        for local, change in changes.items():
            queue = queues.get(local[:PARTITION])
            if queue is None:
                queue = queues[local[:PARTITION]] = records[self._partition(table, local[:PARTITION])] = []
            queue.append(new_outgoing((change.key, change.value, NO_HEADERS)))

    def add_ids(self, ids: Mapping[bytes, list[Pair]], records: dict[TP, list[Sendable]]) -> None:
        """Add the changelog records of inbox entries, which come by the prefix of their partition."""
        for prefix, pairs in ids.items():
            records[self._partition(INBOX, prefix)] = [
                Outgoing(None, value, NO_HEADERS) for value in pack_ids(pairs, self._ids_bytes)
            ]

    def _partition(self, table: str, prefix: bytes) -> TP:
        partitions = self._partitions.setdefault(table, {})
        tp = partitions.get(prefix)
        if tp is None:
            tp = partitions[prefix] = TP(self._layout.changelog(table), int.from_bytes(prefix, "big"))
        return tp


def writes_of(staged: Staged, writes: Writes) -> list[Write]:
    """The store's writes for a committed transaction, the same that recovery would make."""
    made: list[Write] = []
    for table, changes in staged.changes.items():
        made += writes.local(table, [(key, change.value) for key, change in changes.items()])
    for prefix, pairs in staged.ids.items():
        made += writes.ids(prefix, pairs)
    return made
