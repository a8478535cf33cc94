"""Answers about sagas, and operations on them, as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from streams.control.base.answers import StaleAnswer
from streams.model.envelope import rfc3339
from streams.saga.messages import RepairOperation
from streams.saga.state import LogEntry
from streams.saga.views import SagaView, StepView

#: The status of a saga whose row cannot be read.
UNREADABLE = "unreadable"


class SagaAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A saga in a list; see `SagaView`. Times are RFC 3339, empty when they are not known; `elapsed` is in
    seconds. One that cannot be read has the status `unreadable`, and its reason says why. `blocked`: why
    replies and deadlines of it wait, where it is for another version of the application. `undoing`: those of
    `waits_for` of which the undo failed. `stuck`: why it waits for an operator, in words.
    """

    id: str
    way: str
    version: int
    status: str
    stalled: bool
    reason: str
    created_at: str
    changed_at: str
    elapsed: float
    pending: tuple[str, ...]
    waits_for: tuple[str, ...]
    blocked: str = ""
    undoing: tuple[str, ...] = ()
    stuck: str = ""

    @property
    def undecided(self) -> str:
        """The steps that an operator decides about, in words; empty: none."""
        return ", ".join(stuck_at(name, self.undoing) for name in self.waits_for)


class SagasAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A page of sagas. It may be short, even empty, and still have a next one; `looked` is at how many.

    Attributes:
        left_out: lanes that have not answered, with why: their sagas are missing here.
    """

    sagas: list[SagaAnswer]
    looked: int
    left_out: dict[int, str]
    next: str


class StepAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A step; see `StepView`."""

    name: str
    action: str
    status: str
    began_at: str
    ended_at: str
    attempts: int
    error: str


class EntryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a saga; see `SagaTransition`."""

    number: int
    time: str
    step: str
    before: str
    after: str
    detail: str


class SagaShown(msgspec.Struct, frozen=True, kw_only=True):
    """A saga with its timeline. The log has its last entries; `entries` is how many it had ever.

    Attributes:
        partition, lane, owner: where it is.
        operations: whether it takes operations.
        causes: what of its key waits or is a dead letter, in words; none once it has ended.
        stale: set where it is a standby's copy, which takes no operations.
    """

    saga: SagaAnswer
    steps: list[StepAnswer]
    log: list[EntryAnswer]
    entries: int
    partition: int
    lane: int
    owner: str
    operations: bool
    causes: list[str] = []
    stale: StaleAnswer | None = None

    @property
    def advice(self) -> list[str]:
        """Advice on each step that waits for an operator, with the commands."""
        return [_advice(self.saga.id, step) for step in self.steps if step.name in self.saga.waits_for]


def _advice(saga: str, step: StepAnswer) -> str:
    """Of a step that has failed for good."""

    def command(operation: str) -> str:
        return f"`{shlex.join(['steadfaust', 'saga', operation, saga, step.name, '--why', '...'])}`"

    letters = f": look for a dead letter of {step.action} (`steadfaust dlq list`)" if step.action else ""
    return (
        "Nothing goes on by itself: what the other steps did remains, such as stock that is reserved. Mend"
        f" why {step.name} failed{letters}, then ask once more: {command('retry')}. If it was done"
        f" by hand: {command('done')}. To go on without it: {command('skip')}."
    )


class AskSaga(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request about a saga: what to do, by whom and for what reason; both are needed. `step` may
    be left out where only one waits. An operation with the same `id` as one before is not done again.
    """

    operation: RepairOperation
    who: str
    why: str
    step: str = ""
    id: str = ""


class AskedSaga(msgspec.Struct, frozen=True, kw_only=True):
    """The operation and its id. The saga's lane settles it, a moment later: an entry of its log after
    number `entries`, with `said` in its detail, tells what came of it.
    """

    operation: str
    saga: str
    step: str
    id: str
    said: str
    entries: int


def stuck_at(step: str, undoing: Sequence[str]) -> str:
    """That a step has failed for good, or its undo."""
    return f"{step} could not be {'undone' if step in undoing else 'done'}"


def saga_answer(saga: SagaView, now: float, limit: float, undoing: tuple[str, ...] = ()) -> SagaAnswer:
    """A saga's entry in a list; `limit` is how long one may take, in seconds."""
    errors = {step.name: f": {step.error}" for step in saga.steps if step.error}
    stuck = (stuck_at(name, undoing) + errors.get(name, "") for name in saga.waits_for)
    return SagaAnswer(
        id=saga.saga_id,
        way=saga.way,
        version=saga.version,
        status=saga.status,
        stalled=saga.stalled(now, limit),
        reason=saga.reason,
        created_at=_time(saga.created_at),
        changed_at=_time(saga.changed_at),
        elapsed=round(saga.elapsed(now), 3),
        pending=saga.pending,
        waits_for=saga.waits_for,
        blocked=saga.blocked,
        undoing=undoing,
        stuck="; ".join(stuck),
    )


def unreadable(saga_id: str, why: str) -> SagaAnswer:
    """A saga whose row cannot be read."""
    return SagaAnswer(
        id=saga_id,
        way="",
        version=0,
        status=UNREADABLE,
        stalled=False,
        reason=why,
        created_at="",
        changed_at="",
        elapsed=0.0,
        pending=(),
        waits_for=(),
    )


def step_answer(step: StepView) -> StepAnswer:
    """A step of a timeline."""
    return StepAnswer(
        name=step.name,
        action=step.action,
        status=step.status,
        began_at=_time(step.began_at),
        ended_at=_time(step.ended_at),
        attempts=step.attempts,
        error=step.error,
    )


def entry_answer(entry: LogEntry) -> EntryAnswer:
    """An entry of a log."""
    return EntryAnswer(
        number=entry.number,
        time=_time(entry.time),
        step=entry.step,
        before=entry.before,
        after=entry.after,
        detail=entry.detail,
    )


def _time(seconds: float) -> str:
    return rfc3339(seconds) if seconds else ""
