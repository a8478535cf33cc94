"""A saga's row while a transition changes it: the states of its steps, its log, and what goes with them."""

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
    """What a transition has changed so far. The new row is made at the end: to copy it for every change takes
    a fifth of a transition's time.

    Attributes:
        definition: what the saga goes by.
        saga_id: which saga.
        now: when the transition happens, epoch seconds.
        status: the saga's.
        reason: why it does not complete; empty otherwise.
        sent: commands and other messages.
        timers: deadlines and delays by the names of their steps.
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
        """All that it came to. A timer that was cancelled and set again is only set. The log loses its oldest
        entries where it has more than LOG_BOUND.
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
        """The current state of a step. Raises KeyError for one that the row does not have."""
        return self._steps[step.name]

    def find(self, name: str) -> StepState | None:
        """The current state of the step of a name, if the row has it."""
        return self._steps.get(name)

    def note(self, step: str, before: str, after: str, detail: str = "") -> None:
        """Write down that the status of `step`, or for an empty one of the saga, went from `before` to
        `after`; `detail` says more. Long texts lose their end.
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
        """All that the saga knows by now. What was kept could be read then: where it cannot be now, a class
        has changed. Raises SagaStepsChanged, so the message waits for a worker that can read it.
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
        """Raises TooLarge where the row has no room for what a step tells."""
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
        """Give a step another status; whatever was awaited of it before is not any more."""
        before = self.state(step)
        self.change(step, status=status, awaiting=awaiting, **changes)
        self.timers.pop(step.name, None)
        if before.awaiting:
            self._cancelled.append(step.name)
        self.note(step.name, before.status, status, self.state(step).error)

    def become(self, status: SagaStatus, detail: str) -> None:
        """Give the saga another status."""
        self.note("", self.status, status, detail)
        self.status = status
