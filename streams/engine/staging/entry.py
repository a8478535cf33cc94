"""An entry: the place of a message in the order of commits, and what its handlers decided."""

from __future__ import annotations

from typing import Final

from streams.engine.staging.changes import Change, Pair
from streams.engine.staging.keys import prefix_of
from streams.kafka.records.writing import PackedRecord
from streams.ports import TP, Content, Sendable

#: Bytes of Python's objects beside those of the data in them, about: of an entry, of a change in it, and of
#: what it sends. A worker's resident memory by its backlog says so (docs/adr/0008-bounded-memory.md).
ENTRY_BYTES: Final = 400
CHANGE_BYTES: Final = 350
SEND_BYTES: Final = 900


def size_of(record: Content) -> int:
    """Bytes of its key, value and headers."""
    size = len(record.key or b"") + len(record.value or b"")
    pairs: tuple[tuple[str, bytes | None], ...] = tuple(record.headers)  # a client's value may be None
    for name, value in pairs:
        size += len(name) + len(value or b"")
    return size


class Entry:
    """One message on its way, and later what it decided. `done` once its handlers have finished."""

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
        """`tp` is None for what moves no offset, such as a timer or a retry; `size` is in bytes. Without a
        key it waits for all that came before, and all that comes after waits for it.
        """
        self.key = key
        self.offset = offset
        self.partition = partition
        self.prefix = prefix_of(partition)
        self.tp = tp
        self.next_offset = next_offset
        self.size = size
        #: When its message was written, epoch milliseconds; 0 of what is none.
        self.timestamp = 0
        #: Bytes that the commit order counts for it; kept here because every entry has them.
        self.counted = 0
        self.changes: list[Change] = []
        #: Its entries of the inbox: with each key the time, in milliseconds, and a note.
        self.ids: list[Pair] = []
        self.sends: list[tuple[TP, Sendable]] = []
        #: What is handled in it: its own message, and those of them that its lane has handled with it.
        self.messages = 1
        self.done = False
        self.in_commit = False

    @property
    def weight(self) -> int:
        """Bytes that it and what it decided take in memory, about."""
        size = self.size + ENTRY_BYTES
        for change in self.changes:
            size += CHANGE_BYTES + len(change.local) + len(change.value or b"")
        for key, value in self.ids:
            size += CHANGE_BYTES + len(key) + len(value)
        for _, sent in self.sends:
            size += SEND_BYTES + (len(sent.data) if type(sent) is PackedRecord else size_of(sent))
        return size


class HeadEntry(Entry):
    """The entry of a message that has waited, with the local key of its queue and its number there."""

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
