"""Answers about dead letters, and operations on them, as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from streams.control.base.claims import ClaimAnswer
from streams.control.base.merging import merged_by, total
from streams.control.base.table_fields import text_of
from streams.control.waiting.waiting_answers import WaitingAnswer
from streams.engine.waiting.dead_letters.row import Event, Summary
from streams.model.envelope import rfc3339
from streams.model.operations import LetterCommand


class LetterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter in a list. `holds` says that later messages wait behind it, `gone` that its handler is
    not there any more, or takes its topic no more.
    """

    id: str
    state: str
    handler: str
    service: str
    topic: str
    partition: int
    offset: int
    key: str
    message_type: str
    error_type: str
    error_message: str
    place: str
    attempts: int
    failed_at: str
    replays: int
    holds: bool
    omitted: int
    size: int
    gone: bool = False


class LettersAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A page of letters. It may be short, even empty, and still have a next one; `looked` is at how many."""

    letters: list[LetterAnswer]
    looked: int
    next: str


class GroupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Letters that have failed alike: how many, when the first and the last, and one of them.

    Attributes:
        message: the error message of that one.
        last_hour: how many have failed in the last hour.
        failed_again: how many failed in a replay, too.
        replaying: how many have a replay that has not ended; why one of them waits is on its page.
    """

    handler: str
    service: str
    error_type: str
    place: str
    message_type: str
    count: Annotated[int, total]
    oldest: Annotated[str, min]
    newest: Annotated[str, max]
    example: str
    message: str = ""
    last_hour: Annotated[int, total] = 0
    failed_again: Annotated[int, total] = 0
    replaying: Annotated[int, total] = 0

    @property
    def alike(self) -> tuple[str, str, str, str]:
        """The common properties of its letters."""
        return self.handler, self.error_type, self.place, self.message_type


class GroupsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of a part of the letters; with those of the next parts they are to be merged."""

    groups: list[GroupAnswer]
    looked: int
    next: str


class EventAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was done about a letter."""

    at: str
    who: str
    operation: str
    why: str
    result: str


class LetterShown(msgspec.Struct, frozen=True, kw_only=True):
    """A letter with all that is known of it. `value` is decoded; `hex` is in its place when it will not
    decode, and `unreadable` says why; `claim` is the object that is its payload. After `max_replays` replays
    that failed it is parked; `waits` is what its replay waits for, `behind` how many messages of its key wait
    until it is settled.
    """

    letter: LetterAnswer
    value: Any
    hex: str
    unreadable: str
    headers: list[tuple[str, str]]
    trace: str
    history: list[EventAnswer]
    max_replays: int = 0
    waits: WaitingAnswer | None = None
    behind: int = 0
    claim: ClaimAnswer | None = None


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request of an operator.

    Attributes:
        operation: what to do.
        who, why: by whom and for what reason; both are needed.
        letters: about these; about all that `matching` names when there are none.
        matching: a filter, as in the query of a list; by itself an empty one names nothing.
        job: a name; what was done under the same name before is not done again.
        force: also parked ones.
        rate: operations in a second at most.
        dry_run: only count.
        value, headers: of an edited message, base64.
        message: an edited message in plain data, as `LetterShown.value` has it, in place of a value.
    """

    operation: LetterCommand
    who: str
    why: str
    letters: list[str] = []
    matching: dict[str, str] = {}
    job: str = ""
    force: bool = False
    rate: float = 200.0
    dry_run: bool = False
    value: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None
    message: dict[str, Any] | None = None


class JobAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is: letters looked at, matched and sent operations; `lanes` of how many it has been
    through.

    `state`: running, done, stopped or failed; `waits_for` says why it does not get on, while a lane has no
    owner that answers. The operations are settled by the letters' lanes, a moment later: `results` counts
    how, where one job is requested by its name.
    """

    job: str
    operation: str
    state: str
    dry_run: bool
    looked: int
    matched: int
    asked: int
    lane: int
    lanes: int
    groups: list[GroupAnswer]
    error: str = ""
    waits_for: str = ""
    results: JobResults | None = None


class SettledAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a letter's lane to an operation; `result` is empty until it is `settled`, and begins
    with `refused:` where nothing was done.

    Attributes:
        outcome: how it ended: handled, failed (again), waiting (a replay that has not run yet), refused, done
            (of a discard or restore), discarded (meanwhile); empty until it is settled.
        detail: the error of a replay that failed, why it waits, or why the operation was refused.
    """

    letter: str
    operation: str
    job: str
    settled: bool
    result: str = ""
    outcome: str = ""
    detail: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it stays like this."""
        return self.outcome not in ("", "waiting")


class OutcomesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How operations of a job on several letters have ended, as far as their lanes have answered."""

    outcomes: list[SettledAnswer]


class JobResults(msgspec.Struct, frozen=True, kw_only=True):
    """How the operations of a job have ended: counts by outcome.

    Attributes:
        unsettled: those that no lane has answered yet.
        errors: how many replays failed again with which error; the most frequent ones.
        example: one of these letters.
    """

    handled: int = 0
    failed: int = 0
    waiting: int = 0
    refused: int = 0
    done: int = 0
    discarded: int = 0
    unsettled: int = 0
    errors: dict[str, int] = {}
    why_waiting: str = ""
    example: str = ""

    @property
    def is_final(self) -> bool:
        """Whether no count changes any more."""
        return not self.waiting and not self.unsettled


class JobsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a worker since it started, the newest last."""

    jobs: list[JobAnswer]


def letter_answer(ident: str, letter: Summary, *, gone: bool) -> LetterAnswer:
    """A letter's entry in a list."""
    return LetterAnswer(
        id=ident,
        state=str(letter.state),
        handler=letter.handler,
        service=letter.service,
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        key=text_of(letter.key or b""),
        message_type=letter.message_type,
        error_type=letter.error_type,
        error_message=letter.error_message,
        place=letter.place,
        attempts=letter.attempts,
        failed_at=rfc3339(letter.failed_at_ms / 1000),
        replays=letter.replays,
        holds=bool(letter.queue),
        omitted=letter.omitted,
        size=letter.size,
        gone=gone,
    )


def event_answer(event: Event) -> EventAnswer:
    """An event of a letter's history."""
    at = rfc3339(event.at_ms / 1000)
    return EventAnswer(at=at, who=event.who, operation=event.operation, why=event.why, result=event.result)


def all_groups(groups: Iterable[GroupAnswer]) -> list[GroupAnswer]:
    """Groups of several parts together, the largest first."""
    return sorted(merged_by(groups, "alike"), key=lambda group: (-group.count, group.alike))
