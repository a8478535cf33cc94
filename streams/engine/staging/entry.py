"""An entry: the place of a message in the order of commits, and what its handlers decided."""

from __future__ import annotations

from typing import Final

from streams.engine.staging.changes import Change, Pair
from streams.engine.staging.keys import prefix_of
from streams.engine.staging.loops import Sent
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
        "ahead",
        "changes",
        "counted",
        "done",
        "head",
        "ids",
        "in_commit",
        "key",
        "looped",
        "messages",
        "next_offset",
        "offset",
        "partition",
        "prefix",
        "sends",
        "size",
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
        """`tp` is None for what moves no offset, such as a timer or a retry; `size` is in bytes. Without a
        key it waits for all that came before, and all that comes after waits for it.
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
        self.changes: list[Change] = []
        #: Its entries of the inbox: with each key the time, in milliseconds, and a note.
        self.ids: list[Pair] = []
        self.sends: list[tuple[TP, Sendable]] = []
        #: Those of them that its lane may handle before it has read them, until it has tried.
        self.looped: list[Sent] | None = None
        #: What is handled in it: its own message, and those of them that were.
        self.messages = 1
        self.done = False
        self.in_commit = False

    def take_looped(self) -> list[Sent]:
        """Give the messages that its lane may handle now, and keep them no longer."""
        looped, self.looped = self.looped, None
        return looped or []

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
