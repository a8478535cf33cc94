"""Which messages that a lane sends to itself it may handle before it has read them back: those before which
there is none of their key and topic that it has still to handle (docs/adr/0046-loopback.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from streams.model.envelope import LOOPBACK
from streams.ports import TP, OwnRecord, Record


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
    """What lies before a lane in the topics that it writes for itself."""

    def __init__(self, topics: Collection[str], ends: Mapping[TP, int]) -> None:
        """`topics` are those that it takes part in. `ends` are those of partitions of which, when it opened,
        it had not read all.
        """
        self.topics = frozenset(topics)
        self._ends = dict(ends)
        self._before: dict[tuple[str, bytes], set[bytes]] = {}

    def read_up_to(self, tp: TP, offset: int) -> None:
        """All below an offset was taken."""
        if self._ends and self._ends.get(tp, offset + 1) <= offset:
            del self._ends[tp]

    def comes(self, topic: str, key: bytes, message_id: bytes) -> None:
        """A message is written, or was read, that is still to be handled."""
        self._before.setdefault((topic, key), set()).add(message_id)

    def came(self, topic: str, key: bytes, message_id: bytes) -> None:
        """It is handled, or waits for a handler."""
        ids = self._before.get((topic, key))
        if ids is not None:
            ids.discard(message_id)
            if not ids:
                del self._before[topic, key]

    def may_loop(self, tp: TP, key: bytes) -> bool:
        """Whether nothing of a key is before what is written now."""
        return (tp.topic, key) not in self._before and tp not in self._ends
