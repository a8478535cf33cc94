"""A saga's row: the state of each step, the awaited reply, and the latest events."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import msgspec

from streams.model.message import Message, Row
from streams.model.outcome import Timer

#: `completing` is after the pivot: it only goes forward. `failed` waits for an operator.
SagaStatus = Literal["started", "completing", "completed", "compensating", "compensated", "failed"]

#: `skipped`: it was not to be made, or an operator has decided so.
StepStatus = Literal[
    "pending", "in_progress", "completed", "failed", "compensating", "compensated", "skipped"
]

#: Entries that a row keeps of its log; the topic of transitions has all of them.
LOG_BOUND = 50

#: Bytes that a row may have of the message that started it and of the data of replies. So its steps and its
#: log always have room in a record of the usual million: a saga that has begun must be able to go on.
KEPT_BOUND = 600_000


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to the saga; see `SagaTransition`.

    Attributes:
        number: its place in the saga's log, from 1, without a gap.
        time: when the saga took it, epoch seconds.
        step: the step that it is about; empty for the saga itself.
        before: the status before, of the step or the saga.
        after: the status after; the same when nothing has changed.
        detail: what a person wants to know besides; may be empty.
    """

    number: int
    time: float
    step: str
    before: str
    after: str
    detail: str


class StepState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a step.

    Attributes:
        name: as the definition has it.
        action: the topic of its command; empty for a local step.
        compensation: the topic of what undoes it; empty when nothing does.
        status: its state.
        completed_at: epoch seconds of its success; 0 when it had none.
        error: why it was not done or not undone, or why an operator has decided so; empty otherwise.
        undoing: whether its last command was its compensation.
        uncertain: whether an attempt ended with an unknown outcome.
        attempt: the number of the command that was sent last, compensations counted too.
        tries: how many of them since the last change of direction.
        asked: number of questions to its participant about the awaited reply.
        awaiting: the id of the command whose reply, or turn, is awaited; empty when none is.
        data: its reply, as it came.
    """

    name: str
    action: str
    compensation: str
    status: Annotated[
        StepStatus,
        msgspec.Meta(title="StepStatus", description="Skipped: not to be made, or an operator's decision."),
    ] = "pending"
    completed_at: float = 0.0
    error: str = ""
    undoing: bool = False
    uncertain: bool = False
    attempt: int = 0
    tries: int = 0
    asked: int = 0
    awaiting: str = ""
    data: bytes = b""


class SagaRow(Row, frozen=True, kw_only=True):
    """A saga. Completed and compensated are final.

    Attributes:
        saga_id: which saga: <definition>:<key>.
        version: of the definition that it began with, and ends with.
        definition: the digest of that definition; empty in rows that were written before there was one.
        status: its state.
        current_step: the step that something has happened to last.
        steps: the state of each.
        created_at: when it began, epoch seconds.
        start: the message that started it, as JSON, without what the definition forgets.
        reason: why it does not complete; empty otherwise.
        entries: how many entries its log had ever.
        log: the last of them.
    """

    saga_id: str
    version: int
    status: Annotated[
        SagaStatus,
        msgspec.Meta(
            title="SagaStatus",
            description="Completing: past the pivot. Failed: it waits for an operator.",
        ),
    ]
    current_step: str
    steps: tuple[StepState, ...]
    created_at: float
    start: bytes
    reason: str = ""
    entries: int = 0
    log: tuple[LogEntry, ...] = ()
    definition: str = ""

    @property
    def ended(self) -> bool:
        """Whether its status is final."""
        return self.status in ("completed", "compensated")

    def find(self, name: str) -> StepState | None:
        """The step of a name, if it has one."""
        for each in self.steps:
            if each.name == name:
                return each
        return None

    def step(self, name: str) -> StepState:
        """The step of a name. Raises KeyError."""
        if (found := self.find(name)) is None:
            raise KeyError(name)
        return found


class Transition(NamedTuple):
    """A saga's next state, and what goes with it.

    Attributes:
        send: commands, and the message at the end.
        timers: deadlines and delays; each is named after its step.
        cancel: names of timers that are not needed any more.
        entries: what has happened, in order.
    """

    row: SagaRow
    send: list[Message]
    timers: list[Timer]
    cancel: list[str]
    entries: list[LogEntry]
