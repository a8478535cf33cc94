"""Answers of the pages of a key, and their JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.control.base.answers import RowAnswer
from streams.control.base.claims import ClaimAnswer
from streams.control.base.database_answers import OutboxRowAnswer
from streams.control.letters.letter_answers import LetterAnswer
from streams.control.sagas.saga_answers import SagaAnswer
from streams.control.waiting.waiting_answers import WaitingAnswer


class RowChange(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a row, by its changelog, and what is different from the one before.

    Attributes:
        time: of the transaction, RFC 3339; `topic`, `partition`, `offset` say where its record is.
        before: what has changed, as it was: of its fields only those. `after`: as it is then.
        removed: the row is gone since. `was_removed`: it was not there before.
        is_first: no earlier version was found: `after` is all of it.
        error: why a version cannot be shown.
        step: the number of the entry whose handler changed it; 0: none is known.
        sure: whether a message of the same transaction says so; else it is the last one that may have.
        handlers: of those that take that entry, which may write the table.
    """

    table: str
    key: str
    subkey: str
    time: str
    topic: str
    partition: int
    offset: int
    before: Any
    after: Any
    removed: bool
    was_removed: bool
    is_first: bool
    error: str
    step: int = 0
    sure: bool = False
    handlers: tuple[str, ...] = ()


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of the rows of a key, the newest first.

    Attributes:
        subkey: of the one row; None: all rows of the key.
        topic: the changelog, and the `partition` that has them.
        whole: whether the log was read to its beginning: it has no earlier one.
        older: the cursor of the topic's page with earlier ones; empty: there are none.
        stopped: why no more was read for this page.
    """

    table: str
    key: str
    subkey: str | None
    topic: str
    partition: int
    versions: list[RowChange]
    whole: bool
    older: str
    stopped: str


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a timeline.

    Attributes:
        number: its place, from 1.
        time: of the record, RFC 3339; `after_ms` since the first one.
        type: the class of the message, or what the record says that it is.
        kind: event, command, reply, transition, repair, retry or dead letter; message for any other.
        caused_by: the id of its cause; `cause` is the number of that entry, 0 when it is not here.
        handlers: which take it by the wiring of today; of a retry or a dead letter, which did.
        failure: what a retry or a dead letter says of its error and attempts.
        value: decoded. Where it is not, `hex` has the beginning of its bytes, and `unreadable` says why.
        poison: it cannot be decoded, so that no handler has seen it.
        reference: of a payload in the object store; `claim` says more of it.
        outbox: its row in the outbox of PostgreSQL, where the worker knows one that has it.
        trace: the id of the trace that it belongs to (W3C); empty where it has none.
        trace_at: where that is looked at; empty where no setting names it.
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
    poison: bool = False
    reference: str = ""
    claim: ClaimAnswer | None = None
    outbox: OutboxRowAnswer | None = None
    trace: str = ""
    trace_at: str = ""


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
    """Rows, letters and timers of a key, from its owner."""

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


class NamedThing(msgspec.Struct, frozen=True, kw_only=True):
    """A handler, topic or table whose name has the search text, or a key that begins so; with its page."""

    kind: str
    name: str
    link: str


class TimelineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a key, or of a message's or correlation id.

    Attributes:
        asked: the search text.
        key: the key that this means.
        held: what the key's owner has; None when it does not answer, and `missing` says why.
        since: where the timeline begins, RFC 3339.
        until: up to where it is complete; empty: up to the committed end.
        stopped: why it ends there.
        looked: at how many records, in so many `partitions` of so many `topics`.
        everywhere: whether in all partitions, or in the key's only.
        entries: in order of time.
        changes: of rows, in order of time, with the entries that made them.
        changes_stopped: why not all of them are there; empty: they are.
        outbox: the row of the message that was searched, if it is one that has not reached Kafka.
        outbox_missing: why the outbox was not read; empty where it was, or there is none.
        named: handlers, topics and tables by that name.
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
    named: list[NamedThing] = []
    changes: list[RowChange] = []
    changes_stopped: str = ""
    outbox: OutboxRowAnswer | None = None
    outbox_missing: str = ""

    @property
    def changes_by_step(self) -> dict[int, list[RowChange]]:
        """The changes that each entry made, by its number."""
        found: dict[int, list[RowChange]] = {}
        for change in self.changes:
            found.setdefault(change.step, []).append(change)
        return found
