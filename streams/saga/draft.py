"""The changes of a transition while it is computed: step states, log entries, messages and timers."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.errors import SagaStepsChanged, TooLarge, Undecodable
from streams.model.codecs import NO_JSON
from streams.model.message import Message
from streams.model.outcome import Timer
from streams.saga.definition import Saga, Step
from streams.saga.messages import TEXT_BOUND
from streams.saga.replies import data_of, fields_of
from streams.saga.state import KEPT_BOUND, LOG_BOUND, LogEntry, SagaRow, SagaStatus, StepState, Transition


class Draft:
    """The changes of a transition so far. The new row is made once, at the end, because copying it for every
    change takes a fifth of a transition's time.

    Attributes:
        definition: the saga's definition.
        saga_id: the saga's id.
        now: time of the transition in epoch seconds.
        status: the saga's status.
        reason: why the saga does not complete; empty otherwise.
        sent: commands and other messages to send.
        timers: deadlines and retry delays, by step name.
    """

    def __init__(self, definition: Saga, row: SagaRow, now: float) -> None:
        self.definition = definition
        self.saga_id = row.saga_id
        self.now = now
        self.status: SagaStatus = row.status
        self.reason = row.reason
        self.sent: list[Message] = []
        self.timers: dict[str, Timer] = {}
        self._row = row
        self._steps = {each.name: each for each in row.steps}
        self._current_step = row.current_step
        self._cancelled: list[str] = []
        self._entries: list[LogEntry] = []

    def ended(self) -> Transition:
        """The finished transition. A timer that was cancelled and set again is only set. The row keeps the
        newest LOG_BOUND entries of the log.
        """
        row = msgspec.structs.replace(
            self._row,
            status=self.status,
            reason=self.reason,
            current_step=self._current_step,
            steps=tuple(self._steps.values()),
            entries=self._row.entries + len(self._entries),
            log=(*self._row.log, *self._entries)[-LOG_BOUND:],
        )
        cancel = [name for name in self._cancelled if name not in self.timers]
        return Transition(row, self.sent, list(self.timers.values()), cancel, self._entries)

    def state(self, step: Step) -> StepState:
        """The current state of a step. Raises KeyError if the row does not have the step."""
        return self._steps[step.name]

    def find(self, name: str) -> StepState | None:
        """The current state of the step with this name; None if the row has no such step."""
        return self._steps.get(name)

    def note(self, step: str, before: str, after: str, detail: str = "") -> None:
        """Log that the status of `step`, or of the saga if `step` is empty, went from `before` to `after`.
        `step` and `detail` are cut to TEXT_BOUND characters.
        """
        entry = LogEntry(
            number=self._row.entries + len(self._entries) + 1,
            time=self.now,
            step=step[:TEXT_BOUND],
            before=before,
            after=after,
            detail=detail[:TEXT_BOUND],
        )
        self._entries.append(entry)

    def facts(self) -> dict[str, Any]:
        """The facts: fields of the start message and of the replies so far. Raises SagaStepsChanged if they
        cannot be read because a class has changed; the message waits for a worker that can read them.
        """
        try:
            facts = self.definition.known(self._row.start)
            for step in self.definition.steps():
                state = self.find(step.name)
                if state is not None and state.data:
                    facts |= fields_of(data_of(step, state.data))
        except (Undecodable, *NO_JSON) as error:
            raise SagaStepsChanged(
                f"what {self.saga_id} received cannot be read any more: {error}. A class of its messages"
                " has changed: give the new field a default, or give the definition another version and keep"
                " the old one"
            ) from error
        return facts

    def check_room(self, step: Step, data: bytes) -> None:
        """Raises TooLarge if the row has no room for the data of a step."""
        if not data:
            return
        kept = len(self._row.start) + len(data) + sum(len(each.data) for each in self._steps.values())
        if kept > KEPT_BOUND:
            raise TooLarge(
                f"step {step.name} of {self.saga_id} returns {len(data)} bytes: with its start message and"
                f" its replies the row would keep {kept} bytes, and the limit is {KEPT_BOUND}"
            )

    def change(self, step: Step, **changes: Any) -> None:
        """Change fields of a step's state."""
        self._steps[step.name] = msgspec.structs.replace(self.state(step), **changes)
        self._current_step = step.name

    def set_status(self, step: Step, status: str, *, awaiting: str = "", **changes: Any) -> None:
        """Change and log the status of a step. This cancels its timer and what it awaited before."""
        before = self.state(step)
        self.change(step, status=status, awaiting=awaiting, **changes)
        self.timers.pop(step.name, None)
        if before.awaiting:
            self._cancelled.append(step.name)
        self.note(step.name, before.status, status, self.state(step).error)

    def become(self, status: SagaStatus, detail: str) -> None:
        """Change and log the saga's status."""
        self.note("", self.status, status, detail)
        self.status = status
