"""One transition of a saga in the making: how its way forward and back changes the row, and what is sent."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.errors import SagaStepsChanged, TooLarge, Undecodable
from streams.model.codecs import NO_JSON, encode_json
from streams.model.message import Message
from streams.model.outcome import Timer
from streams.saga.definition import Facts, Refusal, Saga, Step
from streams.saga.messages import LONG_AGO, Command, Reply, ReplyOutcome
from streams.saga.replies import data_of, error_of, fields_of, reason_of
from streams.saga.state import KEPT_BOUND, LogEntry, SagaRow, SagaStatus, StepState, Transition

#: A command that ended so may have been done all the same; one that has expired, by a try before that.
_UNCERTAIN = frozenset({"error", "expired", "timed_out"})


class Turn:
    """One transition in the making."""

    def __init__(self, definition: Saga, row: SagaRow, now: float) -> None:
        self.row = row
        self._definition = definition
        self._now = now
        self._out: list[Message] = []
        self._timers: dict[str, Timer] = {}
        self._cancelled: list[str] = []
        self._entries: list[LogEntry] = []

    def ended(self) -> Transition:
        """All that it came to. A timer that was cancelled and set again is only set."""
        cancel = [name for name in self._cancelled if name not in self._timers]
        return Transition(self.row, self._out, list(self._timers.values()), cancel, self._entries)

    def state(self, step: Step) -> StepState:
        """The current state of a step."""
        return self.row.step(step.name)

    def note(self, step: str, before: str, after: str, detail: str = "") -> None:
        """Write down what has happened."""
        self.row = self.row.with_entry(time=self._now, step=step, before=before, after=after, detail=detail)
        self._entries.append(self.row.log[-1])

    def unawaited(self, reply: Reply) -> None:
        """A late, repeated or unknown reply changes nothing."""
        state = self.row.find(reply.step)
        status = "unknown" if state is None else state.status
        self.note(reply.step, status, status, f"not awaited: {reply.outcome} of {reply.command_id}")

    def done(self, step: Step, reply: Reply) -> None:
        """The reply to a command, or that there is none."""
        reply = self._as_taken(step, reply)
        if reply.outcome == "success":
            self.set_status(step, "completed", data=reply.data, completed_at=self._now, error="")
        else:
            uncertain = self.state(step).uncertain or reply.outcome in _UNCERTAIN
            asked_for_state = reply.outcome == "cancelled" and self.state(step).asked > 0
            final = reply.outcome in ("refused", "cancelled") and not asked_for_state
            if final and step.compensate is None:
                uncertain = False  # the participant knows: it is not done and will not be
            self._change(step, uncertain=uncertain, error=error_of(reply))
            wait = None if final else step.tries.wait(self.state(step).tries)
            if wait is not None:
                self._again(step, wait)
                return
            if not self.row.reason:
                self.row = msgspec.structs.replace(self.row, reason=reason_of(reply))
            self.set_status(step, "failed")
        self.advance()

    def undone(self, step: Step, reply: Reply) -> None:
        """The reply to a compensation, or that there is none."""
        if reply.outcome == "success":
            self.set_status(step, "compensated")
        else:
            self._change(step, error=error_of(reply))
            wait = step.retry_compensation.wait(self.state(step).tries)
            if wait is not None:
                self._again(step, wait)
                return
            self.set_status(step, "failed")
        self.advance()

    def ask_after(self, step: Step) -> bool:
        """Its deadline has come. A participant of ours is to tell its state: what it has not begun by then
        it does not begin any more, and says so. The question goes the way of the command, so it comes after
        it, however far behind the participant is. False: there is no participant to ask, or it was silent for
        long enough.
        """
        state = self.state(step)
        if self._kind(step).TOPIC not in self._definition.ours:
            return False
        wait = step.asking.wait(state.asked + 1)
        if wait is None:
            return False
        self._change(step, asked=state.asked + 1)
        self.note(step.name, state.status, state.status, f"no reply yet; asked after {state.awaiting}")
        self._out.append(self._command(step, expires=LONG_AGO))
        self._set_timer(step, self._now + wait, "timed_out")
        return True

    # -- the way forward and back ---------------------------------------------------------------------

    def advance(self) -> None:
        """Go on as far as it can without another message."""
        if self.row.status in ("started", "completing"):
            self._forward()
        elif self.row.status == "compensating":
            self._backward()

    def _forward(self) -> None:
        for stage in self._definition.stages:
            for step in stage:
                if self.state(step).status == "pending":
                    self._enter(step)
            statuses = {self.state(step).status for step in stage}
            if "in_progress" in statuses:
                return
            if "failed" in statuses:
                if any(self._must_go_on(step) for step in stage):
                    self.become("failed", self.row.reason)
                else:
                    self.become("compensating", self.row.reason)
                    self._backward()
                return
            if stage[0].pivot and self.row.status == "started":
                self.become("completing", "past the pivot")
        self._end("completed", self._definition.completed)

    def _must_go_on(self, step: Step) -> bool:
        unknown = step.pivot and step.compensate is None and self.state(step).uncertain
        return step.forward_only or unknown

    def _enter(self, step: Step) -> None:
        if step.when is not None and not step.when(self._facts()):
            self.set_status(step, "skipped")
        elif step.local is not None:
            self._make_locally(step)
        else:
            self._ask(step, undoing=False)

    def _make_locally(self, step: Step) -> None:
        assert step.local is not None
        made = step.local(self._facts())
        if isinstance(made, Refusal):
            self.row = msgspec.structs.replace(self.row, reason=made.reason)
            self.set_status(step, "failed", error=f"refused: {made.reason}")
        else:
            data = b"" if made is None else encode_json(made)
            self._check_room(step, data)
            self.set_status(step, "completed", data=data, completed_at=self._now, error="")

    def _backward(self) -> None:
        for stage in reversed(self._definition.stages):
            if any(self.state(step).status == "compensating" for step in stage):
                return
            todo = [step for step in stage if self._is_to_be_undone(step)]
            for step in todo:
                self._ask(step, undoing=True)
            if todo:
                return
            stuck = [s for s in map(self.state, stage) if s.status == "failed" and s.undoing]
            if stuck:
                self.become("failed", f"{stuck[0].name} is not undone: {stuck[0].error}")
                return
        self._end("compensated", self._definition.compensated)

    def _is_to_be_undone(self, step: Step) -> bool:
        state = self.state(step)
        if step.compensate is None or state.undoing:
            return False
        return state.status == "completed" or (state.status == "failed" and state.uncertain)

    def _end(self, status: SagaStatus, kind: type[Message] | None) -> None:
        self.become(status, self.row.reason)
        self.tell(kind)

    def tell(self, kind: type[Message] | None) -> None:
        """Send a message of the saga itself, if there is one for this."""
        if kind is not None:
            self.tell_of(kind, {**self._facts(), "reason": self.row.reason})

    def tell_of(self, kind: type[Message] | None, facts: Facts) -> None:
        """Send a message that is filled from these facts, if there is one for this."""
        if kind is not None:
            self._out.append(self._definition.end(kind, facts))

    # -- commands -------------------------------------------------------------------------------------

    def _ask(self, step: Step, *, undoing: bool) -> None:
        self.set_status(step, "compensating" if undoing else "in_progress", undoing=undoing, tries=0)
        self._prepare(step)
        self.send(step)

    def ask_again(self, step: Step) -> None:
        """Send a step's last command again, with a full set of tries; make a local step."""
        if step.local is None:
            self._ask(step, undoing=self.state(step).undoing)
        else:
            self._make_locally(step)
            self.advance()

    def _prepare(self, step: Step) -> None:
        state = self.state(step)
        attempt = state.attempt + 1
        awaiting = f"{self.row.saga_id}:{step.name}:{attempt}"
        self._change(step, attempt=attempt, tries=state.tries + 1, awaiting=awaiting, asked=0)

    def _again(self, step: Step, wait: float) -> None:
        state = self.state(step)
        self.note(step.name, state.status, state.status, f"{state.error}; again in {wait:g} s")
        self._prepare(step)
        self._set_timer(step, self._now + wait, "due")

    def send(self, step: Step) -> None:
        """Send the command that is awaited, and set its deadline."""
        due = self._now + step.timeout
        if self.state(step).undoing:
            command = self._command(step)
        elif self._kind(step).TOPIC in self._definition.ours:
            command = self._command(step, within=step.timeout)
        else:
            command = self._command(step, expires=due)
        self._out.append(command)
        self._set_timer(step, due, "timed_out")

    def _kind(self, step: Step) -> type[Command]:
        """The class of the current command."""
        kind = step.compensate if self.state(step).undoing else step.command
        assert kind is not None
        return kind

    def _command(self, step: Step, *, expires: float = 0.0, within: float = 0.0) -> Command:
        state = self.state(step)
        return step.command_of(
            self._kind(step),
            self._facts(),
            saga_id=self.row.saga_id,
            step=step.name,
            command_id=state.awaiting,
            attempt=state.attempt,
            expires=expires,
            within=within,
        )

    def _set_timer(self, step: Step, due: float, outcome: ReplyOutcome) -> None:
        assert self._definition.replies is not None
        message = self._definition.replies(
            saga_id=self.row.saga_id,
            step=step.name,
            command_id=self.state(step).awaiting,
            outcome=outcome,
            reason=f"no reply within {step.timeout:g} s" if outcome == "timed_out" else "",
        )
        self._timers[step.name] = Timer(step.name, due, message)

    # -- changes --------------------------------------------------------------------------------------

    def _facts(self) -> Facts:
        """All that the saga knows. What was kept could be read then: where it cannot be now, a class has
        changed. Raises SagaStepsChanged, so the message waits for a worker that can read it.
        """
        try:
            facts = self._definition.known(self.row.start)
            for step in self._definition.steps():
                state = self.row.find(step.name)
                if state is not None and state.data:
                    facts |= fields_of(data_of(step, state.data))
        except (Undecodable, *NO_JSON) as error:
            raise SagaStepsChanged(
                f"what {self.row.saga_id} received cannot be read any more: {error}. A class of its messages"
                " has changed: give the new field a default, or give the definition another version and keep"
                " the old one"
            ) from error
        return facts

    def _check_room(self, step: Step, data: bytes) -> None:
        kept = len(self.row.start) + len(data) + sum(len(each.data) for each in self.row.steps)
        if data and kept > KEPT_BOUND:
            raise TooLarge(
                f"step {step.name} of {self.row.saga_id} tells {len(data)} bytes: with what started it and "
                f"the replies to it its row would keep {kept}, and may keep {KEPT_BOUND}"
            )

    def _as_taken(self, step: Step, reply: Reply) -> Reply:
        """A reply; in place of a success whose data cannot be taken, an error: no step could go on from it,
        so it is undone.
        """
        if reply.outcome != "success":
            return reply
        try:
            data_of(step, reply.data)
            self._check_room(step, reply.data)
        except (Undecodable, TooLarge) as error:
            return msgspec.structs.replace(reply, outcome="error", reason=str(error), data=b"")
        return reply

    def _change(self, step: Step, **changes: Any) -> None:
        self.row = self.row.with_step(msgspec.structs.replace(self.state(step), **changes))

    def set_status(self, step: Step, status: str, **changes: Any) -> None:
        """Give a step another status; whatever was awaited of it is not any more."""
        before = self.state(step)
        self._change(step, status=status, **{"awaiting": "", **changes})
        self._timers.pop(step.name, None)
        if before.awaiting:
            self._cancelled.append(step.name)
        self.note(step.name, before.status, status, self.state(step).error)

    def become(self, status: SagaStatus, detail: str) -> None:
        """Give the saga another status."""
        before = self.row.status
        self.row = msgspec.structs.replace(self.row, status=status)
        self.note("", before, status, detail)
