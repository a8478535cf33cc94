"""A saga for operators: its state, the steps to come, and its history.

An orchestrated saga is read from its row. A choreographed one has no row of its own: the application keeps
one of the events that it has seen, and its course says which events there are. Both come to the same view.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from streams.errors import WiringError
from streams.model.message import Message
from streams.model.table import Table
from streams.saga.repairs import awaiting_operator
from streams.saga.state import LogEntry, SagaRow, SagaStatus, StepState, StepStatus


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step: of a choreographed saga, an event. Times in epoch seconds, 0 when they are not known.

    Attributes:
        action: the topic of its command, of its compensation once it is undone, or of the event; empty for a
            local step.
        began_at: the time of its first command, as far as the log reaches back.
        ended_at: when it came to its status; 0 while it is to come.
        attempts: commands that were sent, compensations counted too.
        error: why it was not done, or why an operator has decided so; empty otherwise.
    """

    name: str
    action: str
    status: StepStatus
    began_at: float = 0.0
    ended_at: float = 0.0
    attempts: int = 0
    error: str = ""


class SagaView(msgspec.Struct, frozen=True, kw_only=True):
    """A saga. Times in epoch seconds.

    Attributes:
        saga_id: `<name>:<key>`.
        way: whether a definition conducts it, or it is a choreography.
        version: of its definition; 0 when it has none.
        status: see `SagaStatus`.
        reason: why it does not complete; empty otherwise.
        created_at: when it began.
        changed_at: when its status, or that of a step, changed last.
        pending: steps that are still to be done, or to be undone.
        waits_for: steps that wait for an operator.
        steps: in order.
        log: what has happened, as far as it is kept.
        entries: how many entries its log had ever.
        blocked: why it takes no messages in this application; empty when it does.
    """

    saga_id: str
    way: Literal["orchestrated", "choreographed"]
    version: int
    status: SagaStatus
    reason: str
    created_at: float
    changed_at: float
    pending: tuple[str, ...]
    waits_for: tuple[str, ...]
    steps: tuple[StepView, ...]
    log: tuple[LogEntry, ...]
    entries: int
    blocked: str = ""

    @property
    def ended(self) -> bool:
        """Whether its status is final."""
        return self.status in ("completed", "compensated")

    def elapsed(self, now: float) -> float:
        """Seconds from its beginning to its end, or to `now`."""
        return max(0.0, (self.changed_at if self.ended else now) - self.created_at)

    def stalled(self, now: float, limit: float) -> bool:
        """Whether it has not ended within its limit, in seconds."""
        return not self.ended and self.elapsed(now) > limit


# -- orchestrated -----------------------------------------------------------------------------------------


def orchestrated(row: SagaRow, blocked: str = "") -> SagaView:
    """The view of a saga's row; `blocked`: see `SagaView`."""
    changes = [entry for entry in row.log if entry.before != entry.after]
    return SagaView(
        saga_id=row.saga_id,
        way="orchestrated",
        version=row.version,
        status=row.status,
        reason=row.reason,
        created_at=row.created_at,
        changed_at=changes[-1].time if changes else row.created_at,
        pending=_pending(row),
        waits_for=tuple(step.name for step in awaiting_operator(row)),
        steps=tuple(
            _step(step, [entry for entry in changes if entry.step == step.name]) for step in row.steps
        ),
        log=row.log,
        entries=row.entries,
        blocked=blocked,
    )


def _pending(row: SagaRow) -> tuple[str, ...]:
    if row.ended:
        return ()
    back = row.status == "compensating" or any(step.undoing for step in row.steps)
    waits = awaiting_operator(row)
    to_come = _is_to_be_undone if back else _is_to_be_done
    return tuple(step.name for step in row.steps if step in waits or to_come(step))


def _is_to_be_done(step: StepState) -> bool:
    return step.status in ("pending", "in_progress")


def _is_to_be_undone(step: StepState) -> bool:
    uncertain = step.status == "failed" and step.uncertain and not step.undoing
    return bool(step.compensation) and (step.status in ("completed", "compensating") or uncertain)


def _step(step: StepState, changes: Sequence[LogEntry]) -> StepView:
    under_way = step.status in ("pending", "in_progress", "compensating")
    return StepView(
        name=step.name,
        action=step.compensation if step.undoing and step.compensation else step.action,
        status=step.status,
        began_at=next((entry.time for entry in changes if entry.before == "pending"), 0.0),
        ended_at=changes[-1].time if changes and not under_way else 0.0,
        attempts=step.attempt,
        error=step.error,
    )


# -- choreographed ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Course:
    """The events that a choreographed saga is made of.

    Attributes:
        steps: events of a successful saga, in order; the last one completes it.
        failures: each event that turns the saga back, with the events of the compensations that follow.
    """

    steps: tuple[type[Message], ...]
    failures: Mapping[type[Message], tuple[type[Message], ...]]


class Seen(msgspec.Struct, frozen=True):
    """An event that a saga has seen: topic, time in epoch seconds, and `detail` for people."""

    topic: str
    time: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ChoreographedSaga:
    """The table with the events that choreographed sagas have seen, and how to read it.

    Attributes:
        name: name of the saga. If a key has an orchestrated saga of the same name, too, only that is shown.
        table: table of the events; its rows have no subkey.
        view: makes the view from a saga id and a row; None if the row belongs to no choreographed saga.
    """

    name: str
    table: Table[Any]
    view: Callable[[str, Any], SagaView | None]


def check_tables(sagas: Sequence[ChoreographedSaga], tables: Collection[str]) -> None:
    """Raises WiringError if the application lacks the table of a choreographed saga."""
    if lost := [each.table.name for each in sagas if each.table.name not in tables]:
        raise WiringError(f"choreographed sagas are read from {lost}, which no handler has")


def choreographed(
    saga_id: str, course: Course, seen: Sequence[Seen], without: Sequence[type[Message]] = ()
) -> SagaView:
    """The view of a saga that has seen these events, at least one. Events in `without` are not expected. If
    several failures were seen, the first one turned the saga back.
    """
    by_topic = {each.topic: each for each in seen}
    failures = {kind.TOPIC: kind for kind in course.failures}
    failure = next((failures[each.topic] for each in seen if each.topic in failures), None)
    expected = [kind.TOPIC for kind in _expected(course, failure, by_topic) if kind not in without]
    pending = tuple(topic for topic in expected if topic not in by_topic)
    status: SagaStatus
    if failure is not None:
        status = "compensating" if pending else "compensated"
    else:
        status = "completed" if course.steps[-1].TOPIC in by_topic else "started"
    failed = failure.TOPIC if failure is not None else ""
    topics = dict.fromkeys([*expected, *by_topic])
    return SagaView(
        saga_id=saga_id,
        way="choreographed",
        version=0,
        status=status,
        reason=by_topic[failed].detail if failed else "",
        created_at=min(each.time for each in seen),
        changed_at=max(each.time for each in seen),
        pending=() if status == "completed" else pending,
        waits_for=(),
        steps=tuple(_event(topic, by_topic.get(topic), failed=topic == failed) for topic in topics),
        log=tuple(
            LogEntry(number=n, time=each.time, step=each.topic, before="", after="seen", detail=each.detail)
            for n, each in enumerate(seen, start=1)
        ),
        entries=len(seen),
    )


def _expected(
    course: Course, failure: type[Message] | None, seen: Mapping[str, Seen]
) -> Sequence[type[Message]]:
    if failure is None:
        return course.steps
    made = [kind for kind in course.steps if kind.TOPIC in seen]
    return [*made, failure, *course.failures[failure]]


def _event(topic: str, seen: Seen | None, *, failed: bool) -> StepView:
    if seen is None:
        return StepView(name=topic, action=topic, status="pending")
    return StepView(
        name=topic,
        action=topic,
        status="failed" if failed else "completed",
        ended_at=seen.time,
        error=seen.detail if failed else "",
    )
