"""Messages of which the broker refuses what they lead to: each is a dead letter when it is handled again.

The lane knows which one it is when it was alone in its transaction. It is remembered over openings, until its
dead letter is committed. A timer whose message is refused is put off in place of that: it has no topic yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from streams.engine.staging.entry import Entry, HeadEntry, TimerEntry
from streams.errors import NotCommittable

log = structlog.get_logger(__name__)

#: So often the letter of one message may be refused itself: the second one goes without the message's value.
MOST_LETTERS = 2


@dataclass(slots=True)
class _Refused:
    """A message, why, how often, and the entry that is to bring its dead letter."""

    why: str
    times: int = 1
    entry: Entry | None = None


class Refusals:
    """Refusals of one lane; `found` has them, by what the broker refused."""

    def __init__(self) -> None:
        self.found: dict[object, _Refused] = {}

    def begin(self) -> None:
        """The lane opens: what was staged before is gone."""
        for each in self.found.values():
            each.entry = None

    def blame(self, entry: Entry, why: str) -> bool:
        """An entry was alone in a transaction that was refused. False: it is no message that could be a dead
        letter, and no timer, or what was to come in its place was refused, too.
        """
        key = _key_of(entry)
        if key is None:
            return False
        found = self.found.get(key)
        if found is None:
            self.found[key] = _Refused(why)
        elif found.times == MOST_LETTERS:
            del self.found[key]  # it is not the message: it is handled as any other once this passes
            return False
        else:
            found.times += 1
            found.entry = None
        if not isinstance(entry, TimerEntry):  # a timer is said when it is put off
            log.warning(
                "message_refused", topic=entry.tp.topic if entry.tp else "", offset=entry.offset, error=why
            )
        return True

    def of_timer(self, name: bytes) -> str:
        """Why the message of a timer is refused; empty: it is not."""
        found = self.found.get(name)
        return "" if found is None else found.why

    def of(self, entry: Entry) -> NotCommittable | None:
        """Why the message of an entry, which is handled again, is to be a dead letter; None: it is not."""
        found = self.found.get(_key_of(entry))
        if found is None:
            return None
        found.entry = entry
        return NotCommittable(f"what it leads to cannot be committed: {found.why}", omit=found.times > 1)

    def committed(self) -> None:
        """The last transaction is committed: the dead letters in it are written."""
        for key, found in list(self.found.items()):
            if found.entry is not None and found.entry.in_commit:
                del self.found[key]


def _key_of(entry: Entry) -> object:
    if isinstance(entry, TimerEntry):
        return entry.timer
    if isinstance(entry, HeadEntry):
        return entry.queue, entry.number
    return None if entry.tp is None else (entry.tp, entry.offset)
