"""How a saga reacts to a message: it goes forward or compensates, and sends commands."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.errors import TooLarge, Undecodable, Unencodable
from streams.model.codecs import encode_json
from streams.model.message import Message
from streams.model.outcome import Timer
from streams.saga.definition import Facts, Refusal, Step
from streams.saga.draft import Draft
from streams.saga.messages import LONG_AGO, Command, Reply, ReplyOutcome
from streams.saga.replies import data_of, error_of, reason_of
from streams.saga.state import SagaStatus

#: Outcomes after which the command may have been carried out; an expired one by an earlier attempt.
_UNCERTAIN = frozenset({"error", "expired", "timed_out"})


class Turn(Draft):
    """A transition in progress. Each method applies one event to the saga."""

    def unawaited(self, reply: Reply) -> None:
        """Log a late, repeated or unknown reply, which changes nothing."""
        state = self.find(reply.step)
        status = "unknown" if state is None else state.status
        self.note(reply.step, status, status, f"not awaited: {reply.outcome} of {reply.command_id}")

    def done(self, step: Step, reply: Reply) -> None:
        """Apply the reply to a command, or its timeout."""
        reply = self._as_taken(step, reply)
        if reply.outcome == "success":
            self.set_status(step, "completed", data=reply.data, completed_at=self.now, error="")
        else:
            uncertain = self.state(step).uncertain or reply.outcome in _UNCERTAIN
            asked_for_state = reply.outcome == "cancelled" and self.state(step).asked > 0
            final = reply.outcome in ("refused", "cancelled") and not asked_for_state
            if final and step.compensate is None:
                uncertain = False  # the participant is certain that it did not run and never will
            self.change(step, uncertain=uncertain, error=error_of(reply))
            wait = None if final else step.tries.wait(self.state(step).tries)
            if wait is not None:
                self._again(step, wait)
                return
            self.reason = self.reason or reason_of(reply)
            self.set_status(step, "failed")
        self.advance()

    def undone(self, step: Step, reply: Reply) -> None:
        """Apply the reply to a compensation, or its timeout."""
        if reply.outcome == "success":
            self.set_status(step, "compensated")
        else:
            self.change(step, error=error_of(reply))
            wait = step.retry_compensation.wait(self.state(step).tries)
            if wait is not None:
                self._again(step, wait)
                return
            self.set_status(step, "failed")
        self.advance()

    def ask_after(self, step: Step) -> bool:
        """Ask the participant about a timed-out command. Returns False if the participant is not in this
        application, or was asked often enough. A command that it has not begun by then is cancelled, and it
        replies so. The question uses the command's topic, so the participant reads it after the command.
        """
        state = self.state(step)
        if self._kind(step).TOPIC not in self.definition.ours:
            return False
        wait = step.asking.wait(state.asked + 1)
        if wait is None:
            return False
        self.change(step, asked=state.asked + 1)
        self.note(step.name, state.status, state.status, f"no reply yet; asked after {state.awaiting}")
        self.sent.append(self._command(step, expires=LONG_AGO))
        self._set_timer(step, wait, "timed_out")
        return True

    def _as_taken(self, step: Step, reply: Reply) -> Reply:
        """The reply; in place of a success with unreadable or too large data, an error. Later steps could not
        use such data, so the step is retried or compensated.
        """
        if reply.outcome != "success":
            return reply
        try:
            data_of(step, reply.data)
            self.check_room(step, reply.data)
        except (Undecodable, TooLarge) as error:
            return msgspec.structs.replace(reply, outcome="error", reason=str(error), data=b"")
        return reply

    # -- the way forward and back ---------------------------------------------------------------------

    def advance(self) -> None:
        """Run steps forward or backward until the saga needs another message."""
        if self.status in ("started", "completing"):
            self._forward()
        elif self.status == "compensating":
            self._backward()

    def _forward(self) -> None:
        for stage in self.definition.stages:
            for step in stage:
                if self.state(step).status == "pending":
                    self._enter(step)
            statuses = {self.state(step).status for step in stage}
            if "in_progress" in statuses:
                return
            if "failed" in statuses:
                if any(self._must_go_on(step) for step in stage):
                    self.become("failed", self.reason)
                else:
                    self.become("compensating", self.reason)
                    self._backward()
                return
            if stage[0].pivot and self.status == "started":
                self.become("completing", "past the pivot")
        self._end("completed", self.definition.completed)

    def _must_go_on(self, step: Step) -> bool:
        unknown = step.pivot and step.compensate is None and self.state(step).uncertain
        return step.forward_only or unknown

    def _enter(self, step: Step) -> None:
        if step.when is not None and not step.when(self.facts()):
            self.set_status(step, "skipped")
        elif step.local is not None:
            self._make_locally(step)
        else:
            self._ask(step, undoing=False)

    def _make_locally(self, step: Step) -> None:
        assert step.local is not None
        made = step.local(self.facts())
        if isinstance(made, Refusal):
            self.reason = made.reason
            self.set_status(step, "failed", error=f"refused: {made.reason}")
        else:
            data = b"" if made is None else encode_json(made)
            if data:
                self._check_readable(step, data)
            self.check_room(step, data)
            self.set_status(step, "completed", data=data, completed_at=self.now, error="")

    def _check_readable(self, step: Step, data: bytes) -> None:
        """Raises Unencodable if the facts that a local step returned could not be read back."""
        try:
            data_of(step, data)
        except Undecodable as error:
            what = f"saga {self.definition.name}: what local step {step.name} gives does not fit"
            raise Unencodable(f"{what}: {error}") from error

    def _backward(self) -> None:
        for stage in reversed(self.definition.stages):
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
        self._end("compensated", self.definition.compensated)

    def _is_to_be_undone(self, step: Step) -> bool:
        state = self.state(step)
        if step.compensate is None or state.undoing:
            return False
        return state.status == "completed" or (state.status == "failed" and state.uncertain)

    def _end(self, status: SagaStatus, kind: type[Message] | None) -> None:
        self.become(status, self.reason)
        self.tell(kind)

    def tell(self, kind: type[Message] | None) -> None:
        """Send a message of class `kind`, filled from the saga's facts and reason; None sends nothing."""
        if kind is not None:
            self.tell_of(kind, {**self.facts(), "reason": self.reason})

    def tell_of(self, kind: type[Message] | None, facts: Facts) -> None:
        """Send a message of class `kind`, filled from `facts`; None sends nothing."""
        if kind is not None:
            self.sent.append(self.definition.end(kind, facts))

    # -- commands -------------------------------------------------------------------------------------

    def _ask(self, step: Step, *, undoing: bool) -> None:
        status = "compensating" if undoing else "in_progress"
        self.set_status(step, status, undoing=undoing, **self._next_try(step, tries=1))
        self.send(step)

    def ask_again(self, step: Step) -> None:
        """Send a step's last command again with all its retries, or run a local step again."""
        if step.local is None:
            self._ask(step, undoing=self.state(step).undoing)
        else:
            self._make_locally(step)
            self.advance()

    def _next_try(self, step: Step, tries: int) -> dict[str, Any]:
        attempt = self.state(step).attempt + 1
        awaiting = f"{self.saga_id}:{step.name}:{attempt}"
        return {"attempt": attempt, "tries": tries, "awaiting": awaiting, "asked": 0}

    def _again(self, step: Step, wait: float) -> None:
        state = self.state(step)
        self.note(step.name, state.status, state.status, f"{state.error}; again in {wait:g} s")
        self.change(step, **self._next_try(step, state.tries + 1))
        self._set_timer(step, wait, "due")

    def send(self, step: Step) -> None:
        """Send the awaited command, and set its timeout."""
        if self.state(step).undoing:
            command = self._command(step)
        elif self._kind(step).TOPIC in self.definition.ours:
            command = self._command(step, within=step.timeout)
        else:
            command = self._command(step, expires=self.now + step.timeout)
        self.sent.append(command)
        self._set_timer(step, step.timeout, "timed_out")

    def _kind(self, step: Step) -> type[Command]:
        kind = step.compensate if self.state(step).undoing else step.command
        assert kind is not None
        return kind

    def _command(self, step: Step, *, expires: float = 0.0, within: float = 0.0) -> Command:
        state = self.state(step)
        return step.command_of(
            self._kind(step),
            self.facts(),
            saga_id=self.saga_id,
            step=step.name,
            command_id=state.awaiting,
            attempt=state.attempt,
            expires=expires,
            within=within,
        )

    def _set_timer(self, step: Step, after: float, outcome: ReplyOutcome) -> None:
        assert self.definition.replies is not None
        message = self.definition.replies(
            saga_id=self.saga_id,
            step=step.name,
            command_id=self.state(step).awaiting,
            outcome=outcome,
            reason=f"no reply within {step.timeout:g} s" if outcome == "timed_out" else "",
        )
        self.timers[step.name] = Timer(step.name, self.now + after, message, after)
