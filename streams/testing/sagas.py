"""Tests a saga step by step with chained calls, without a broker or a lane.

    given_saga(OrderSaga).start(submitted)
        .expect_command(ReserveStock).reply(success)
        .expect_command(CapturePayment).reply(refused, reason="card_declined")
        .expect_compensation(ReleaseStock).reply(success)
        .expect_event(OrderCancelled, reason="card_declined")
        .expect_status("compensated")

With `ours`, participants are in the saga's own application, and get a question if no reply comes in time:

    given_saga(OrderSaga, ours=True).start(submitted).expect_command(ReserveStock)
        .time_passes(31).expect_question(ReserveStock).reply(cancelled)

A test must expect every message of the saga before it lets anything else happen. See docs/sagas.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final, Self

import msgspec

from streams.model.message import Message
from streams.model.outcome import Timer
from streams.saga import repairs
from streams.saga.definition import Saga
from streams.saga.messages import Command, Repair, Reply, ReplyOutcome
from streams.saga.state import LogEntry, SagaRow, Transition
from streams.saga.transition import begin, receive

success: Final = "success"
refused: Final = "refused"
error: Final = "error"
expired: Final = "expired"
cancelled: Final = "cancelled"


class SagaUnderTest:
    """A saga under test, created by `given_saga`, with its row, its timers and its unexpected messages.

    All methods but `sent` return `self`, for chained calls. A failed expectation raises AssertionError, which
    states what the saga did instead. So does any event while a message of the saga is still unexpected.

    Attributes:
        now: the saga's time, in epoch seconds.
        entries: all entries of the saga's log.
    """

    def __init__(self, definition: Saga, now: float) -> None:
        self.now = now
        self.entries: list[LogEntry] = []
        self._definition = definition
        self._row: SagaRow | None = None
        self._timers: dict[str, Timer] = {}
        self._unexpected: list[Message] = []
        self._commands: list[Command] = []
        self._expected: Command | None = None
        self._said: Reply | None = None

    @property
    def row(self) -> SagaRow:
        """The saga's row, with its status, steps and data. Raises AssertionError before `start`."""
        assert self._row is not None, "the saga has not been started"
        return self._row

    # -- events ---------------------------------------------------------------------------------------

    def start(self, message: Message) -> Self:
        """Start the saga with a message of its class `started_by`."""
        assert isinstance(message, self._definition.started_by), f"{message!r} does not start it"
        return self._take(begin(self._definition, message, self.now))

    def reply(
        self,
        outcome: ReplyOutcome,
        data: msgspec.Struct | None = None,
        *,
        reason: str = "",
        to: type[Command] | None = None,
    ) -> Self:
        """Answer the last expected command or, with `to`, the last command of that class.

        Arguments:
            outcome: success, refused, error, expired or cancelled.
            data: data of the reply, of the class that the step names as `reply`.
            reason: a code for programs, such as `out_of_stock`, or the text of an error.

        Raises Undecodable for data of another class.
        """
        command = self._expected if to is None else self._last(to)
        assert command is not None, "no command was expected that could be replied to"
        said = command.REPLY(
            saga_id=command.saga_id,
            step=command.step,
            command_id=command.command_id,
            outcome=outcome,
            reason=reason,
            data=b"" if data is None else msgspec.json.encode(data),
        )
        return self._hear(said)

    def repeat_reply(self) -> Self:
        """Deliver the last reply again."""
        assert self._said is not None, "nothing was replied"
        return self._hear(self._said)

    def time_passes(self, seconds: float) -> Self:
        """Advance the time. Timers that become due fire in order."""
        end = self.now + seconds
        while due := sorted((t for t in self._timers.values() if t.due <= end), key=lambda t: t.due):
            timer = due[0]
            self.now = max(self.now, timer.due)
            del self._timers[timer.name]
            self._deliver(timer.message)
        self.now = end
        return self

    def retry(self, step: str, reason: str = "") -> Self:
        """Retry a failed step, as an operator. Raises RepairRefused if the step does not wait for that."""
        return self._take(repairs.retry(self._definition, self.row, step, reason, self.now))

    def skip(self, step: str, reason: str) -> Self:
        """Skip a failed step, as an operator. Raises RepairRefused."""
        return self._take(repairs.skip(self._definition, self.row, step, reason, self.now))

    def mark_done(self, step: str, reason: str) -> Self:
        """Mark a failed step as done by hand, as an operator. Raises RepairRefused."""
        return self._take(repairs.mark_done(self._definition, self.row, step, reason, self.now))

    def cancel(self, reason: str) -> Self:
        """Cancel the saga, as an operator. Raises RepairRefused after the pivot or after the end."""
        return self._take(repairs.cancel(self._definition, self.row, reason, self.now))

    def hear(self, repair: Repair) -> Self:
        """Deliver an operator's message. If it is refused, the saga's log gets an entry."""
        return self._take(repairs.apply_repair(self._definition, self.row, repair, self.now))

    # -- expectations ---------------------------------------------------------------------------------

    def expect_command(self, kind: type[Command], **fields: Any) -> Self:
        """Expect a command with these field values. The next `reply` answers it."""
        found = self._expect(kind, fields)
        assert isinstance(found, Command)
        self._expected = found
        return self

    def expect_question(self, kind: type[Command], **fields: Any) -> Self:
        """Expect the question that follows a command without a timely reply. The next `reply` answers it."""
        self.expect_command(kind, **fields)
        assert self._expected is not None
        assert self._expected.asks, f"{kind.__name__} does not ask, but is the command itself"
        return self

    def sent(self, kind: type[Message]) -> bool:
        """Whether the saga has sent a message of this class that the test has not expected yet."""
        return any(type(each) is kind for each in self._unexpected)

    def expect_compensation(self, kind: type[Command], **fields: Any) -> Self:
        """Expect a command that compensates its step. The next `reply` answers it."""
        self.expect_command(kind, **fields)
        assert self._expected is not None
        assert self.row.step(self._expected.step).undoing, f"{kind.__name__} undoes nothing"
        return self

    def expect_event(self, kind: type[Message], **fields: Any) -> Self:
        """Expect a message with these field values."""
        self._expect(kind, fields)
        return self

    def expect_nothing(self) -> Self:
        """Expect no further message."""
        assert not self._unexpected, f"it has also sent {self._names()}"
        return self

    def expect_status(self, status: str, **steps: str) -> Self:
        """Expect this saga status, these statuses of steps by name, and no further message."""
        assert self.row.status == status, f"it is {self.row.status}: {self.row.reason}"
        found = {name: self.row.step(name).status for name in steps}
        assert found == steps, f"its steps have other statuses: {found}"
        return self.expect_nothing()

    # -- inside ---------------------------------------------------------------------------------------

    def _hear(self, said: Reply) -> Self:
        self._said = said
        return self._deliver(said)

    def _deliver(self, message: Message) -> Self:
        assert isinstance(message, Reply)
        return self._take(receive(self._definition, self.row, message, self.now))

    def _take(self, transition: Transition) -> Self:
        self.expect_nothing()
        self._row = msgspec.json.decode(msgspec.json.encode(transition.row), type=SagaRow)
        self._unexpected += transition.send
        self._commands += [each for each in transition.send if isinstance(each, Command)]
        for name in transition.cancel:
            self._timers.pop(name, None)
        self._timers |= {timer.name: timer for timer in transition.timers}
        self.entries += transition.entries
        return self

    def _expect(self, kind: type[Message], fields: dict[str, Any]) -> Message:
        found = next((each for each in self._unexpected if type(each) is kind), None)
        assert found is not None, f"it has not sent {kind.__name__}, but {self._names()}"
        self._unexpected.remove(found)
        has = {name: getattr(found, name) for name in fields}
        assert has == fields, f"{kind.__name__} has {has}"
        return found

    def _last(self, kind: type[Command]) -> Command | None:
        return next((each for each in reversed(self._commands) if type(each) is kind), None)

    def _names(self) -> str:
        return ", ".join(type(each).__name__ for each in self._unexpected) or "nothing"


def given_saga(
    definition: Saga, *, now: float = 1_700_000_000.0, ours: bool | Collection[type[Command]] = False
) -> SagaUnderTest:
    """Begin a test of a saga.

    Arguments:
        definition: one version of the saga.
        now: the saga's time, in epoch seconds.
        ours: the commands that the saga's own application handles; True means all of them. Their participants
            get a question if a reply is late.
    """
    every = [kind for step in definition.steps() for kind in step.commands]
    taken = every if ours is True else ours or ()
    return SagaUnderTest(replace(definition, ours=frozenset(kind.TOPIC for kind in taken)), now)
