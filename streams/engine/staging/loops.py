"""Decide which of its own messages a lane may handle before it has read them back: those without an earlier
unhandled message of the same key and topic (docs/adr/0046-loopback.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog

from streams.engine.staging.entry import Entry
from streams.model.envelope import LOOPBACK
from streams.ports import TP, OwnRecord, Record

log: Final = structlog.get_logger(__name__)


class Sent(NamedTuple):
    """A staged message that goes to the lane that sends it.

    Attributes:
        number: its index among the messages that its entry sends.
        id: the message's id, as in the header.
    """

    number: int
    id: bytes


def was_looped(record: Record, group: bytes) -> bool:
    """Whether a record of the application `group` was handled in the transaction that wrote it. In a record
    of anyone else the mark means nothing: it was forged, or copied with the other headers.
    """
    if not isinstance(record, OwnRecord):
        return False
    headers: Any = record.headers
    if not headers:
        return False
    name, value = headers[-1]
    return bool(name == LOOPBACK and value == group)


class Loops:
    """Unhandled messages of a lane in the topics that it writes for itself."""

    def __init__(self, topics: Collection[str], ends: Mapping[TP, int]) -> None:
        """`topics` are the topics with loopback. `ends` are the ends of partitions that the lane had not read
        completely when it opened.
        """
        self.topics = frozenset(topics)
        #: Partitions that others write to, as well. Messages to them are read back before they are handled,
        #: so that the order of the log holds.
        self.foreign: set[TP] = set()
        self._ends = dict(ends)
        #: Counts of unhandled messages by topic and key, each by its id while staged and by its offset once
        #: read. Ids are not enough, because anyone may write a record with another message's id.
        self._before: dict[tuple[str, bytes], dict[bytes | int, int]] = {}
        #: Messages that an entry sends to its own lane, until the lane has tried to handle them.
        self._sent: dict[Entry, list[Sent]] = {}

    def add_sent(self, entry: Entry, sent: Sequence[Sent]) -> None:
        """Add messages that an entry sends to its own lane."""
        self._sent.setdefault(entry, []).extend(sent)

    def take_sent(self, entry: Entry) -> list[Sent]:
        """Remove and return the messages that an entry sends to its own lane."""
        return self._sent.pop(entry, [])

    def read_up_to(self, tp: TP, offset: int) -> None:
        """Record that the lane has taken everything below an offset."""
        if self._ends and self._ends.get(tp, offset + 1) <= offset:
            del self._ends[tp]

    def add_read(self, record: Record, message_id: bytes) -> None:
        """Add a message that was read and must still be handled. It replaces the staged one only if the lane
        wrote the record itself.
        """
        key = record.key or b""
        if isinstance(record, OwnRecord):
            self.remove(record.topic, key, message_id)
        elif (tp := TP(record.topic, record.partition)) not in self.foreign:
            self.foreign.add(tp)
            log.warning("foreign_writer", topic=tp.topic, partition=tp.partition, offset=record.offset)
        self.add(record.topic, key, record.offset)

    def remove_read(self, record: Record) -> None:
        """Remove a message that was read, once it is handled or waits for a handler."""
        self.remove(record.topic, record.key or b"", record.offset)

    def add(self, topic: str, key: bytes, name: bytes | int) -> None:
        """Add an unhandled message: a staged one by its id, one that was read by its offset."""
        before = self._before.setdefault((topic, key), {})
        before[name] = before.get(name, 0) + 1

    def remove(self, topic: str, key: bytes, name: bytes | int) -> None:
        """Remove a message that is handled, waits for a handler, or is not written after all."""
        before = self._before.get((topic, key))
        if before is None or name not in before:
            return
        if before[name] > 1:
            before[name] -= 1
            return
        del before[name]
        if not before:
            del self._before[topic, key]

    def begin(self, tp: TP, key: bytes, message_id: bytes) -> bool:
        """Whether a staged message may be handled now. If so, it no longer counts as unhandled."""
        self.remove(tp.topic, key, message_id)
        if not self.may_loop(tp, key):
            self.add(tp.topic, key, message_id)
            return False
        return True

    def may_loop(self, tp: TP, key: bytes) -> bool:
        """Whether a key has no unhandled message before one that is staged now."""
        return (tp.topic, key) not in self._before and tp not in self._ends and tp not in self.foreign
