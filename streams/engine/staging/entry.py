"""An entry: the place of a message in the commit order, and what its handlers decided."""

from __future__ import annotations

from typing import Final

from streams.engine.staging.changes import Change, Pair
from streams.engine.staging.keys import prefix_of
from streams.kafka.records.writing import PackedRecord
from streams.ports import TP, Content, Sendable

#: Approximate bytes of Python objects besides their data: for an entry, a change in it, and a message that it
#: sends. Measured as a worker's resident memory by its backlog (docs/adr/0008-bounded-memory.md).
ENTRY_BYTES: Final = 400
CHANGE_BYTES: Final = 350
SEND_BYTES: Final = 900


def size_of(record: Content) -> int:
    """Bytes of a record's key, value and headers."""
    size = len(record.key or b"") + len(record.value or b"")
    pairs: tuple[tuple[str, bytes | None], ...] = tuple(record.headers)  # a client's value may be None
    for name, value in pairs:
        size += len(name) + len(value or b"")
    return size


class Entry:
    """One run of a message, with the changes that its handlers decided. `done` once they have finished."""

    __slots__ = (
        "changes",
        "counted",
        "done",
        "ids",
        "in_commit",
        "key",
        "messages",
        "next_offset",
        "offset",
        "partition",
        "prefix",
        "sends",
        "size",
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
        """`tp` is None for an entry that moves no offset, such as a timer or a retry. `size` is in bytes. An
        entry without a key waits for all earlier entries, and all later ones wait for it.
        """
        self.key = key
        self.offset = offset
        self.partition = partition
        self.prefix = prefix_of(partition)
        self.tp = tp
        self.next_offset = next_offset
        self.size = size
        #: When its message was written, in epoch milliseconds; 0 for an entry without one.
        self.timestamp = 0
        #: Bytes that the commit order counts for it; kept here because every entry has them.
        self.counted = 0
        self.changes: list[Change] = []
        #: Its inbox entries: pairs of a key, and a time in milliseconds followed by a note.
        self.ids: list[Pair] = []
        self.sends: list[tuple[TP, Sendable]] = []
        #: Number of messages handled in it: its own, and looped ones.
        self.messages = 1
        self.done = False
        self.in_commit = False

    @property
    def weight(self) -> int:
        """Approximate bytes that the entry and its content take in memory."""
        size = self.size + ENTRY_BYTES
        for change in self.changes:
            size += CHANGE_BYTES + len(change.local) + len(change.value or b"")
        for key, value in self.ids:
            size += CHANGE_BYTES + len(key) + len(value)
        for _, sent in self.sends:
            size += SEND_BYTES + (len(sent.data) if type(sent) is PackedRecord else size_of(sent))
        return size


class HeadEntry(Entry):
    """The entry of a waiting message's run, with the local key of its queue and its number there."""

    __slots__ = ("number", "queue")

    def __init__(self, partition: int, size: int, key: bytes, queue: bytes, number: int) -> None:
        super().__init__(partition, None, 0, size, key)
        self.queue = queue
        self.number = number


class TimerEntry(Entry):
    """The entry of a timer, with its name."""

    __slots__ = ("timer",)

    def __init__(self, partition: int, key: bytes, timer: bytes) -> None:
        super().__init__(partition, None, 0, 0, key)
        self.timer = timer
