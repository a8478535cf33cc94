"""Messages of a saga: commands, the replies to them, and its transitions.

An application derives its own classes, one for each topic. A saga is named `<definition>:<key>`; all that it
receives comes under that key, so that it arrives where its row is.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from streams.model.message import LogLine, Message

#: How a command ended. Participants say the first five; the saga's own timers the other two.
#: success: done. refused: not done, for a reason of the business. error: it may or may not have been done.
#: expired: too late, and not tried any more. cancelled: it was not begun and never will be, since its
#: compensation, a later attempt or a question came first.
#: timed_out: no reply came in time. due: it is time to send it (again).
ReplyOutcome = Literal["success", "refused", "error", "expired", "cancelled", "timed_out", "due"]

#: What an operator may ask of a saga; all but `cancel` of a step that waits for one.
RepairOperation = Literal["retry", "skip", "done", "cancel"]

#: When a command has expired that only asks after the one before it with the same id, which is not to be
#: begun any more if it was not yet. So long ago that all clocks agree.
LONG_AGO = 1.0

#: What the detail of a transition begins with whose message had no effect, and should be seen.
IGNORED = "ignored: "

#: Characters of a reason or an error that are kept or sent: a row has many, and must not grow too large.
TEXT_BOUND = 500


def saga_id(name: str, key: str) -> str:
    """The id of a saga, from the name of its definition and its key."""
    return f"{name}:{key}"


def saga_key(saga: str) -> str:
    """The key under which the saga's row lies, from its id."""
    return saga.partition(":")[2]


class Reply(Message, frozen=True, kw_only=True):
    """Base class of replies to commands. An application derives one for each reply topic.

    The deadlines of a saga are replies to itself, too. A timer writes one behind everything in the reply
    topic when it is due, so that earlier replies are handled first (docs/adr/0013).

    Attributes:
        saga_id: id of the saga.
        step: name of the step.
        command_id: id of the command.
        outcome: the result of the command.
        reason: why it was not done: a word for programs (`out_of_stock`), or the text of an error.
        data: facts for later commands, as JSON of the step's reply class; may be empty.
    """

    saga_id: str
    step: str
    command_id: str
    outcome: Annotated[
        ReplyOutcome,
        msgspec.Meta(
            title="ReplyOutcome",
            description="How it ended; timed_out and due are the saga's own timers.",
        ),
    ]
    reason: str = ""
    data: bytes = b""

    @property
    def key(self) -> str:
        """The saga's key."""
        return saga_key(self.saga_id)


class Command(Message, frozen=True, kw_only=True):
    """Base class of commands and compensations. Further fields are filled from the saga's facts.

    Attributes:
        REPLY: class of its reply.
        saga_id: id of the saga.
        step: name of the step, the same for its command and its compensation.
        command_id: unique for each attempt.
        attempt: number of the command in its step, from 1. An outdated command is not started.
        expires: epoch seconds after which it is no longer started; 0 means never.
        within: seconds, from when its participant takes it, after which it is no longer attempted. 0 means as
            long as any message. Time in its topic does not count.
    """

    REPLY: ClassVar[type[Reply]]
    EXPIRES = "expires"
    WITHIN = "within"

    saga_id: str
    step: str
    command_id: str
    attempt: int
    expires: float
    within: float = 0.0

    @property
    def key(self) -> str:
        """The saga's key, unless the command is about something else."""
        return saga_key(self.saga_id)

    @property
    def asks(self) -> bool:
        """Whether it only asks after the command of its id, which has come before it."""
        return self.expires == LONG_AGO

    @property
    def operation(self) -> str:
        """Id of the step for external services, the same for every attempt and for the compensation."""
        return f"{self.saga_id}:{self.step}"


class SagaTransition(Message, frozen=True, kw_only=True):
    """Base class of transitions, the events of a saga's log. An application derives one for their topic.

    Attributes:
        saga_id: id of the saga.
        number: number in the saga's log, from 1 without gaps; 0 if there is no such saga.
        time: when the saga handled the event, in epoch seconds.
        step: name of the step; empty for the saga itself.
        before: status of the step or saga before.
        after: status after. It can be the same as before, for example after a late reply.
        detail: explanation for people; may be empty.
    """

    saga_id: str
    number: int
    time: float
    step: str
    before: str
    after: str
    detail: str

    LOGGED: ClassVar[bool] = True

    def log_line(self) -> LogLine:
        """The level of the log line: warning for what goes back or fails."""
        fields = {"saga_id": self.saga_id, "step": self.step, "before": self.before, "after": self.after}
        if self.detail.startswith(IGNORED):
            level, event = "warning", "saga_ignored"
        elif self.before == self.after:
            level, event = "debug", "saga_heard"
        elif self.after == "failed":
            level, event = "warning", "saga_step_failed" if self.step else "saga_failed"
        elif self.after in ("compensating", "compensated"):
            level, event = "info", "saga_step_compensation" if self.step else "saga_compensation"
        else:
            level, event = "debug", "saga_step_transition" if self.step else "saga_transition"
        return LogLine(level, event, {**fields, "detail": self.detail})

    @property
    def key(self) -> str:
        """The saga's key."""
        return saga_key(self.saga_id)


class Repair(Message, frozen=True, kw_only=True):
    """Base class of operators' requests to a saga. An application derives one for their topic. A request has
    the saga's key, and the inbox drops repetitions by its id.

    Attributes:
        saga_id: id of the saga.
        operation: see `streams.saga.repairs`.
        step: name of the step; empty for a cancellation.
        who: name of the operator.
        why: reason.
    """

    saga_id: str
    operation: Annotated[
        RepairOperation,
        msgspec.Meta(
            title="RepairOperation",
            description="All but cancel are about a step that waits for an operator.",
        ),
    ]
    step: str
    who: str
    why: str

    @property
    def key(self) -> str:
        """The saga's key."""
        return saga_key(self.saga_id)
