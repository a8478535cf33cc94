"""What becomes of messages that cannot run now or whose handler failed: they wait, or become dead letters.

Decided here, applied to the queues by `waiting_line`, and staged like any outcome, in the lane's transaction
(docs/adr/0009). Times are epoch seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from streams.dead_letters.table import DeadLetters
from streams.errors import DataError, NotYet, RowSchemaUnknown, RowUnreadable, text_of
from streams.model.application import LaneOptions
from streams.model.envelope import FINGERPRINT
from streams.policy.breaker import BreakerState
from streams.policy.retry import (
    Decision,
    Expired,
    FailureKind,
    GiveUp,
    Later,
    PutOff,
    TryAgain,
    classify,
    decide,
)
from streams.retry.failures import mirror_to_retry_topic, note_failure
from streams.retry.gate import HandlerGate
from streams.retry.giving_up import GivingUp
from streams.retry.queue import Queue, Reason, WaitingMessage, handler_of, is_replay
from streams.retry.queues import Queues
from streams.retry.waiting_line import WaitingLine, ms, queue_of_key, queue_of_order
from streams.staging.arrival import Arrival, Attempt
from streams.staging.changes import Change
from streams.staging.keys import name_in
from streams.staging.outcomes import OutcomeWriter

log = structlog.get_logger(__name__)

#: Between looks whether a message that is for another version of the application can be handled, in seconds.
NOT_YET_PAUSE = 30.0


class Retries:
    """Decides for one lane."""

    def __init__(
        self,
        options: LaneOptions,
        gates: Mapping[str, HandlerGate],
        queues: Queues,
        line: WaitingLine,
        giving_up: GivingUp,
        letters: DeadLetters,
        writer: OutcomeWriter,
    ) -> None:
        self._options = options
        self._gates = gates
        self._queues = queues
        self._line = line
        self._giving_up = giving_up
        self._letters = letters
        self._writer = writer

    def load(self, now: float) -> None:
        """Learn what waits. A handler that a breaker has held back begins with probes."""
        unknown_handlers: set[str] = set()
        for local, queue in self._queues.committed():
            name = handler_of(name_in(local)).decode("utf-8", "replace")
            gate = self._gates.get(name)
            if gate is None:
                unknown_handlers.add(name)
                continue
            gate.add(local)
            if queue is None:  # what comes of its key must not pass it
                continue
            self._line.crowds.note(gate, local, queue, now)
            self.await_head(gate, local, queue)
            if Reason.BREAKER in _reasons(queue) and gate.breaker.state is BreakerState.CLOSED:
                gate.breaker.start_half_open(now)
        for name in sorted(unknown_handlers):
            log.warning("waiting_for_no_handler", handler=name, action="was it renamed? they wait on")

    def await_head(self, gate: HandlerGate, local: bytes, queue: Queue) -> None:
        """Look out for the schema that the head of a queue waits for, or what is behind replays."""
        if Reason.SCHEMA in _reasons(queue):
            number = queue.head if queue.reason is Reason.SCHEMA else queue.first
            try:
                message = self._queues.message(local, number)
            except RowUnreadable:
                gate.unroutable.add(local)
                return
            fingerprint = dict(message.headers).get(FINGERPRINT, b"")
            gate.unread.add(local, message.topic, fingerprint, message.waits_since)

    # -- before an attempt ------------------------------------------------------------------------------

    def admit(self, attempt: Attempt, now: float) -> bool:
        """Whether the handler may see a message that has just come in; else it waits, or had to be given up.
        What a handler hears of late, it hears at once; while it tries an earlier one again, not at all.
        """
        arrival, handler = attempt.arrival, attempt.handler
        gate = self._gates[handler.name]
        local = queue_of_key(arrival, handler)
        if handler.hears_late and attempt.inbox_key is None and _is_late(arrival, now):
            held = arrival.entry.prefix in gate.held or gate.breaker.state is BreakerState.OPEN
            return held or not self._will_be_tried(local)
        if handler.order_by is not None and local not in gate.queues:
            local = queue_of_order(arrival, handler)
        if local in gate.queues:
            self._line.stand_behind(attempt, local, now)
            return False
        if arrival.entry.prefix in gate.pauses:
            self._line.begin(attempt, Reason.PAUSED, now, now)
            return False
        if gate.breaker.state is BreakerState.CLOSED:
            return True
        permit = gate.breaker.acquire(now)
        if permit is None:
            self._line.begin(attempt, Reason.BREAKER, now, now)
            return False
        attempt.permit = permit
        return True

    def _will_be_tried(self, local: bytes) -> bool:
        """Whether the head of a queue is tried again within its time, or as soon as it can be read."""
        queue = self._queues.get(local)
        return queue is not None and queue.reason in (Reason.RETRY, Reason.SCHEMA)

    def admit_head(self, attempt: Attempt, now: float) -> bool:
        """Whether the handler may see the head of a queue, which has its turn; else it waits on, or goes."""
        arrival = attempt.arrival
        if self.waits_on(attempt):
            return False
        if arrival.error is not None:
            self.give_up(attempt, arrival.error, now)
            return False
        if arrival.permit is None:
            return False
        attempt.permit = arrival.permit
        return not self.requeue_by_order_key(attempt, now)

    def waits_on(self, attempt: Attempt) -> bool:
        """Whether the head of a queue does not run after all: since it set out, its handler was paused, or a
        replay has been put before it, which is first, or an operator has taken it out.
        """
        arrival, gate = attempt.arrival, self._gates[attempt.handler.name]
        queue = self._queues.get(arrival.queue)
        overtaken = queue is None or queue.head != arrival.number
        if not overtaken and arrival.entry.prefix not in gate.held:
            return False
        gate.running.discard(arrival.queue)
        if arrival.permit is not None:
            gate.breaker.give_back(arrival.permit)
        return True

    def requeue_by_order_key(self, attempt: Attempt, now: float) -> bool:
        """Whether the message has to go behind others after all. Its ordering key is known only with its
        payload: one that waits for that holds all of its message key, and gets its place when it has its
        turn. The permit goes back, for nothing was tried with it.
        """
        arrival, handler = attempt.arrival, attempt.handler
        if handler.order_by is None or arrival.message is None:
            return False
        gate, unsorted = self._gates[handler.name], queue_of_key(arrival, handler)
        if arrival.queue not in (b"", unsorted):
            return False
        local = queue_of_order(arrival, handler)
        if local == unsorted or local not in gate.queues:
            return False
        self._line.stand_behind(attempt, local, now)
        gate.breaker.give_back(attempt.permit)
        if arrival.queue:
            self._line.leave(attempt, now)
        return True

    # -- after an attempt -------------------------------------------------------------------------------

    def succeeded(self, attempt: Attempt, now: float) -> None:
        """The outcome is staged; whoever has waited behind the message is next."""
        arrival, handler = attempt.arrival, attempt.handler
        gate = self._gates[handler.name]
        gate.record(attempt.permit, ok=True, now=now)
        gate.last_success = now
        if not arrival.queue:
            return
        self._line.leave(attempt, now)
        if is_replay(arrival.record):
            changes, logged = self._letters.succeeded(arrival.record, handler.name, now)
            self._writer.put(arrival.entry, changes)
            arrival.entry.sends.extend(logged)
            self._writer.counters.replayed += 1

    def failed(self, attempt: Attempt, error: Exception, now: float) -> bool:
        """The handler raised. True: it tries again at once, with a new permit; else the message waits, or is
        given up.
        """
        arrival, handler = attempt.arrival, attempt.handler
        gate = self._gates[handler.name]
        if isinstance(error, RowSchemaUnknown) and _waited(arrival, now) >= self._options.schema_patience:
            error = RowUnreadable(f"{error}. It was waited for over {self._options.schema_patience:g} s")
        kind = classify(error, handler.retry)
        if isinstance(error, NotYet):  # no fault of the outside, and in time it will be known
            # Schemas are announced before rows are written with them, so that is read in a moment.
            soon = isinstance(error, RowSchemaUnknown)
            pause = min(max(1.0, _waited(arrival, now)), NOT_YET_PAUSE) if soon else NOT_YET_PAUSE
            gate.record(attempt.permit, ok=True, now=now)
            note_failure(gate, attempt, error, kind, "NotYet", pause)
            attempt.attempts -= 1
            if self._line.wait(attempt, Reason.RETRY, now + pause, now, error) and not soon:
                gate.not_yet[arrival.queue or queue_of_order(arrival, handler)] = text_of(error)
            return False
        gate.not_yet.pop(arrival.queue, None)
        if isinstance(error, DataError) and kind is FailureKind.PERMANENT:
            gate.give_back(attempt.permit, now=now)
        else:
            gate.record(attempt.permit, ok=kind is FailureKind.PERMANENT, now=now)
        if gate.away and arrival.queue and kind is not FailureKind.PERMANENT:
            # A probe that failed while nothing says that the outside is back: it is not the message's fault.
            attempt.attempts -= 1
            note_failure(gate, attempt, error, kind, "probe failed")
            self._line.put_off(attempt, Reason.BREAKER, now, tried=now)
            return False
        deadline = None if is_replay(arrival.record) else arrival.deadline
        away = self._away(arrival, gate, now)
        decision = decide(kind, attempt.attempts, policy=handler.retry, now=now, deadline=deadline, away=away)
        delay = decision.delay if isinstance(decision, Later | PutOff) else 0.0
        note_failure(gate, attempt, error, kind, type(decision).__name__, delay)
        return self._apply(decision, attempt, error, now)

    def _apply(self, decision: Decision, attempt: Attempt, error: Exception, now: float) -> bool:
        match decision:
            case TryAgain():
                return self._try_again(attempt, error, now)
            case Later():
                if self._line.wait(attempt, Reason.RETRY, decision.due, now, error):
                    self._writer.counters.retries += 1
                    self._gates[attempt.handler.name].retried(decision.tier)
                    mirror_to_retry_topic(attempt, error, decision)
            case PutOff():
                attempt.attempts -= 1
                self._line.put_off(attempt, Reason.RETRY, decision.due, tried=now)
            case GiveUp() | Expired():
                self.give_up(attempt, error, now)
        return False

    def _try_again(self, attempt: Attempt, error: Exception, now: float) -> bool:
        gate = self._gates[attempt.handler.name]
        held = attempt.arrival.entry.prefix in gate.held
        permit = None if held else gate.breaker.acquire(now)
        if permit is None:
            self._line.wait(attempt, Reason.PAUSED if held else Reason.BREAKER, now, now, error)
            return False
        attempt.permit = permit
        gate.retried(0)
        return True

    def _away(self, arrival: Arrival, gate: HandlerGate, now: float) -> float | None:
        """Seconds until the message is tried again while nothing of its handler has succeeded since it was
        tried last; None: something has, it was not tried before, or it has waited for too long already.
        """
        record = arrival.record
        if is_replay(record):
            return None  # whoever asked for it is to hear of it: nobody can settle the letter meanwhile
        if not isinstance(record, WaitingMessage) or now > record.waits_since + self._options.outage_patience:
            return None
        queue = self._queues.get(arrival.queue)
        if queue is None or not queue.tried_ms or ms(gate.last_success) > queue.tried_ms:
            return None
        return gate.breaker.policy.max_open_for

    def give_up(self, attempt: Attempt, error: Exception, now: float) -> None:
        """The handler replies to whoever asked, or the message becomes a dead letter of it. The next of its
        ordering key has its turn, or waits on where the policy says so, until an operator has settled the
        letter.
        """
        arrival = attempt.arrival
        if self._giving_up.reply_on_give_up(attempt, error, now):
            if arrival.queue:
                self._line.leave(attempt, now)
            return
        local = b""
        changes: list[Change] = []
        if attempt.handler.retry.hold_while_dead:
            local, changes = self._line.held(attempt, now)
        self._giving_up.dead_letter(attempt, error, now, holds=name_in(local))
        if local:
            self._line.hold(attempt, local, changes)
        elif arrival.queue:
            self._line.leave(attempt, now)


def _reasons(queue: Queue) -> list[Reason]:
    """Why the head of a queue waits, and of what came since if replays come before it."""
    return [queue.reason, *(queue.behind or ())[:1]]


def _waited(arrival: Arrival, now: float) -> float:
    """For how many seconds a message has waited."""
    record = arrival.record
    return now - record.waits_since if isinstance(record, WaitingMessage) else 0.0


def _is_late(arrival: Arrival, now: float) -> bool:
    """Whether it had expired by the time it came."""
    until = arrival.envelope.deadline
    return until is not None and until < now
