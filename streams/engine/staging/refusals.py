"""Messages that lead to records which the broker refuses. Handled again, each becomes a dead letter.

The lane knows such a message once it was alone in a refused transaction, and remembers it across openings
until its dead letter is committed. If a timer's message is refused, the timer is postponed instead, because
the message is not in a topic yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from streams.engine.staging.entry import Entry, HeadEntry, TimerEntry
from streams.errors import NotCommittable

log = structlog.get_logger(__name__)

#: How often a message's dead letter may be refused, too. The second one omits the message's value.
MOST_LETTERS = 2


@dataclass(slots=True)
class _Refused:
    """Why a message was refused, how often, and the entry with its dead letter, if one is staged."""

    why: str
    times: int = 1
    entry: Entry | None = None


class Refusals:
    """Refusals of one lane. `found` has them, by message or timer."""

    def __init__(self) -> None:
        self.found: dict[object, _Refused] = {}

    def begin(self) -> None:
        """Forget which entries have dead letters, because the lane opens and has dropped what was staged."""
        for each in self.found.values():
            each.entry = None

    def blame(self, entry: Entry, why: str) -> bool:
        """Record that an entry was alone in a refused transaction. False: it is neither a message nor a
        timer, or its dead letters were refused, too.
        """
        key = _key_of(entry)
        if key is None:
            return False
        found = self.found.get(key)
        if found is None:
            self.found[key] = _Refused(why)
        elif found.times == MOST_LETTERS:
            del self.found[key]  # the message is not the cause, so it is handled normally later
            return False
        else:
            found.times += 1
            found.entry = None
        if not isinstance(entry, TimerEntry):  # a timer is logged when it is postponed
            log.warning(
                "message_refused", topic=entry.tp.topic if entry.tp else "", offset=entry.offset, error=why
            )
        return True

    def of_timer(self, name: bytes) -> str:
        """Why a timer's message is refused; empty: it is not."""
        found = self.found.get(name)
        return "" if found is None else found.why

    def of(self, entry: Entry) -> NotCommittable | None:
        """The error with which an entry's message must become a dead letter now; None: it need not."""
        found = self.found.get(_key_of(entry))
        if found is None:
            return None
        found.entry = entry
        return NotCommittable(f"what it leads to cannot be committed: {found.why}", omit=found.times > 1)

    def committed(self) -> None:
        """Forget the refusals with dead letters in the transaction that was just committed."""
        for key, found in list(self.found.items()):
            if found.entry is not None and found.entry.in_commit:
                del self.found[key]


def _key_of(entry: Entry) -> object:
    if isinstance(entry, TimerEntry):
        return entry.timer
    if isinstance(entry, HeadEntry):
        return entry.queue, entry.number
    return None if entry.tp is None else (entry.tp, entry.offset)
