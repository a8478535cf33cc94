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
    """The id of the saga of a definition for a key: an order has one of each definition."""
    return f"{name}:{key}"


def saga_key(saga: str) -> str:
    """The key under which the saga's row lies, from its id."""
    return saga.partition(":")[2]


class Reply(Message, frozen=True, kw_only=True):
    """The reply to a command, for the saga that sent it. An application derives one for each reply topic.

    The saga's deadlines are replies too, sent to itself: a timer puts one behind all that the reply topic has
    when it is due, so what has succeeded by then comes first (docs/adr/0013).

    Attributes:
        saga_id: which saga.
        step: which of its steps.
        command_id: that of the command.
        outcome: how it ended.
        reason: why, when it was not done: a word for programs (`out_of_stock`), or the text of an error.
        data: what later commands may use, the JSON of the step's reply class; empty when there is none.
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
    """Asks a participant for something, or to undo it. Its other fields are filled from what the saga knows.

    Attributes:
        REPLY: the class of its reply, which has the topic.
        saga_id: which saga asks.
        step: for which of its steps; command and compensation of a step have the same.
        command_id: which command: another one for each attempt.
        attempt: the number of the command in its step, from 1; one that was overtaken is not begun.
        expires: epoch seconds after which it is not begun any more; 0: never.
        within: seconds after which it is not tried any more, from when its participant has taken it; 0: it is
            tried as long as any message. What it waits in its topic does not count.
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
        """The id of the step for services outside: the same for every attempt, and for its compensation."""
        return f"{self.saga_id}:{self.step}"


class SagaTransition(Message, frozen=True, kw_only=True):
    """Something that happened to a saga. An application derives one for its topic of transitions.

    Attributes:
        saga_id: which saga.
        number: its place in the saga's log, from 1, without a gap; 0 where there is no such saga.
        time: when the saga took it, epoch seconds.
        step: the step that it is about; empty for the saga itself.
        before: the status before, of the step or the saga.
        after: the status after; the same when nothing has changed, as by a late reply.
        detail: what a person wants to know besides; may be empty.
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
    """A request of an operator to a saga. An application derives one for the topic of them; like all that a
    saga receives it comes under its key, and the inbox knows it by its id, so that it is done once.

    Attributes:
        saga_id: which saga.
        operation: see `streams.saga.repairs`.
        step: of which of its steps; empty to cancel.
        who: by whom.
        why: for what reason.
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
