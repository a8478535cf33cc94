"""Decide which of its own messages a lane may handle before it has read them back: those before which
there is none of their key and topic that it has still to handle (docs/adr/0046-loopback.md).
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
    """A message that is staged, and that its own lane takes.

    Attributes:
        number: its place among what its entry sends.
        id: its message's id, as it stands in the header.
    """

    number: int
    id: bytes


def was_looped(record: Record, group: bytes) -> bool:
    """Whether a record of the application `group` was handled in the transaction that wrote it. Of anybody
    else's record the mark is a header as any other: it is forged, or was copied with the rest.
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
        """`topics` are those that it takes part in. `ends` are those of partitions of which, when it opened,
        it had not read all.
        """
        self.topics = frozenset(topics)
        #: Partitions in which others write, too: what is sent there is read back before it is handled, so
        #: that the order of the log holds.
        self.foreign: set[TP] = set()
        self._ends = dict(ends)
        #: By topic and key, how many there are of each: by id while written, by offset once read. Ids are not
        #: enough: anybody may write a record with the id of another one.
        self._before: dict[tuple[str, bytes], dict[bytes | int, int]] = {}
        #: What an entry sends to its own lane, until that has tried to handle it.
        self._sent: dict[Entry, list[Sent]] = {}

    def add_sent(self, entry: Entry, sent: Sequence[Sent]) -> None:
        """An entry sends these, which its lane may handle before it has read them."""
        self._sent.setdefault(entry, []).extend(sent)

    def take_sent(self, entry: Entry) -> list[Sent]:
        """What an entry sends to its lane; nothing the next time."""
        return self._sent.pop(entry, [])

    def read_up_to(self, tp: TP, offset: int) -> None:
        """All below an offset was taken."""
        if self._ends and self._ends.get(tp, offset + 1) <= offset:
            del self._ends[tp]

    def add_read(self, record: Record, message_id: bytes) -> None:
        """A message was read that is still to be handled. Only the lane's own record is one that it wrote."""
        key = record.key or b""
        if isinstance(record, OwnRecord):
            self.remove(record.topic, key, message_id)
        elif (tp := TP(record.topic, record.partition)) not in self.foreign:
            self.foreign.add(tp)
            log.warning("foreign_writer", topic=tp.topic, partition=tp.partition, offset=record.offset)
        self.add(record.topic, key, record.offset)

    def remove_read(self, record: Record) -> None:
        """A message that was read is handled, or waits for a handler."""
        self.remove(record.topic, record.key or b"", record.offset)

    def add(self, topic: str, key: bytes, name: bytes | int) -> None:
        """A message is still to be handled: one that is staged, by its id, or was read, by its offset."""
        before = self._before.setdefault((topic, key), {})
        before[name] = before.get(name, 0) + 1

    def remove(self, topic: str, key: bytes, name: bytes | int) -> None:
        """It is handled, waits for a handler, or is not written after all."""
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
        """Whether a message that is staged may be handled now; it counts as handled then."""
        self.remove(tp.topic, key, message_id)
        if not self.may_loop(tp, key):
            self.add(tp.topic, key, message_id)
            return False
        return True

    def may_loop(self, tp: TP, key: bytes) -> bool:
        """Whether nothing of a key is before what is written now."""
        return (tp.topic, key) not in self._before and tp not in self._ends and tp not in self.foreign
