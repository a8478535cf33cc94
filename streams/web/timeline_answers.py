"""What the pages of a key say, and their JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.web.answers import RowAnswer
from streams.web.letter_answers import LetterAnswer
from streams.web.saga_answers import SagaAnswer


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a timeline.

    Attributes:
        number: its place, from 1.
        time: of the record, RFC 3339; `after_ms` since the first one.
        type: the class of the message, or what the record says that it is.
        kind: event, command, reply, transition, repair, retry or dead letter; message for any other.
        caused_by: the id of its cause; `cause` is the number of that entry, 0 when it is not here.
        handlers: which take it, by the wiring; of a retry or a dead letter, which did.
        failure: what a retry or a dead letter says of its error and attempts.
        value: decoded. Where it is not, `hex` has the beginning of its bytes, and `unreadable` says why.
        reference: of a payload in the object store.
    """

    number: int
    time: str
    after_ms: int
    topic: str
    partition: int
    offset: int
    key: str
    type: str
    kind: str
    id: str
    caused_by: str
    cause: int
    correlation: str
    source: str
    handlers: list[str]
    failure: dict[str, str]
    value: Any = None
    hex: str = ""
    unreadable: str = ""
    reference: str = ""


class WaitingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a key that wait for a handler. `due_in` in seconds; None: not before something happens."""

    handler: str
    reason: str
    messages: int
    attempts: int
    due: str
    due_in: float | None
    id: str
    topic: str


class TimerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a handler has set a timer for. `due_in` in seconds."""

    handler: str
    name: str
    topic: str
    due: str
    due_in: float


class TableRows(msgspec.Struct, frozen=True, kw_only=True):
    """The first rows of a key in a table; `more` says that there are further ones."""

    table: str
    rows: list[RowAnswer]
    more: bool


class KeyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of a key has of it."""

    key: str
    partition: int
    lane: int
    owner: str
    sagas: list[SagaAnswer]
    tables: list[TableRows]
    letters: list[LetterAnswer]
    waiting: list[WaitingAnswer]
    timers: list[TimerAnswer]

    @property
    def things(self) -> int:
        """How many of them there are."""
        waits = len(self.waiting) + len(self.timers)
        return len(self.sagas) + len(self.tables) + len(self.letters) + waits


class TimelineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a key, or of a message's or correlation id.

    Attributes:
        asked: what was asked for.
        key: the key that this means.
        held: what the key's owner has; None when it does not answer, and `missing` says why.
        since: where the timeline begins, RFC 3339.
        until: up to where it is complete; empty: up to the committed end.
        stopped: why it ends there.
        looked: at how many records, in so many `partitions` of so many `topics`.
        everywhere: whether in all partitions, or in the key's only.
        entries: in order of time.
        longer: an age to look back for, longer than this one; empty when there is none.
    """

    asked: str
    key: str
    held: KeyAnswer | None
    missing: str
    since: str
    until: str
    stopped: str
    looked: int
    partitions: int
    topics: int
    everywhere: bool
    entries: list[TimelineEntry]
    longer: str
