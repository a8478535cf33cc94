"""What becomes of messages that cannot run now or whose handler failed: they wait, or become dead letters.

All of it is staged like any outcome, in the lane's transaction (docs/adr/0009). The record that goes
to a retry topic shows what waits there; what is tried again is the waiting row, of the same transaction.
Times are epoch seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import structlog

from streams.dead_letters.record import message_bytes
from streams.dead_letters.table import DeadLetters
from streams.errors import (
    DataError,
    NotYet,
    QueueFull,
    TooLarge,
    text_of,
)
from streams.model.application import Application, BoundHandler
from streams.model.envelope import FINGERPRINT, RECORD_OVERHEAD, rfc3339
from streams.policy.breaker import BreakerState, Permit
from streams.policy.retry import Expired, FailureKind, GiveUp, Later, PutOff, TryAgain, classify, decide
from streams.ports import TP, Outgoing
from streams.retry.gate import UNASKED, HandlerGate
from streams.retry.queue import (
    Queue,
    Reason,
    Waiting,
    advance,
    append,
    begin,
    handler_of,
    message_of,
    put_off,
    queue_name,
    replayed,
    set_queue,
)
from streams.retry.queues import Queues, with_message, without_head
from streams.staging.arrival import Arrival
from streams.staging.changes import Change
from streams.staging.inbox import Inbox
from streams.staging.outcomes import OutcomeWriter

log = structlog.get_logger(__name__)

#: An ordering key longer than this is hashed: it is part of the keys of rows.
MAX_ORDER_BYTES = 64
#: Between looks whether a message that is for another version of the application can be handled, in seconds.
NOT_YET_PAUSE = 30.0


class Retries:
    """Decides for one lane, and stages what it decided."""

    def __init__(self, app: Application, queues: Queues, writer: OutcomeWriter, letters: DeadLetters) -> None:
        self.gates: Mapping[str, HandlerGate] = {
            name: HandlerGate(name, handler.breaker) for name, handler in app.handlers.items()
        }
        self._options = app.lane_options
        self._limit = app.lane_options.max_message_bytes - RECORD_OVERHEAD
        self._queues = queues
        self._writer = writer
        self._letters = letters
        self._counters = writer.counters

    def load(self, now: float) -> None:
        """Learn what waits. A handler that a breaker has held back begins with probes."""
        unknown_handlers: set[str] = set()
        for local, queue in self._queues.committed():
            name = handler_of(local[2:]).decode("utf-8", "replace")
            gate = self.gates.get(name)
            if gate is None:
                unknown_handlers.add(name)
                continue
            gate.add(local)
            self.await_head(gate, local, queue)
            if Reason.BREAKER in _reasons(queue) and gate.breaker.state is BreakerState.CLOSED:
                gate.breaker.start_half_open(now)
        for name in sorted(unknown_handlers):
            log.warning("waiting_for_no_handler", handler=name, action="was it renamed? they wait on")

    def await_head(self, gate: HandlerGate, local: bytes, queue: Queue) -> None:
        """Look out for the schema that the head of a queue waits for, or what is behind replays."""
        if Reason.SCHEMA in _reasons(queue):
            number = queue.head if queue.reason is Reason.SCHEMA else queue.first
            message = self._queues.message(local, number)
            fingerprint = dict(message.headers).get(FINGERPRINT, b"")
            gate.unread.add(local, message.topic, fingerprint, message.waits_since)

    # -- a message that has just come in ----------------------------------------------------------------

    def admit(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        at_now: Callable[[], float],
    ) -> Permit | None:
        """Whether the handler may see the message now; None: it waits, or had to become a dead letter. The
        clock is read for those that something holds up, so that the others cost nothing while some wait.
        What a handler hears of late, it hears at once; while it tries an earlier one again, not at all.
        """
        gate = self.gates[handler.name]
        local = queue_of_key(arrival, handler)
        if handler.hears_late and inbox_key is None and _is_late(arrival, at_now):
            held = arrival.entry.prefix in gate.held or gate.breaker.state is BreakerState.OPEN
            return None if self._will_be_tried(local) and not held else UNASKED
        if handler.order_by is not None and local not in gate.queues:
            local = self.local_of(arrival, handler)
        if local in gate.queues:
            at_now()
            self.stand_behind(arrival, handler, inbox_key, local)
            return None
        if arrival.entry.prefix in gate.pauses:
            self.begin(arrival, handler, inbox_key, Reason.PAUSED, at_now())
            return None
        if gate.breaker.state is BreakerState.CLOSED:
            return UNASKED
        now = at_now()
        permit = gate.breaker.acquire(now)
        if permit is None:
            self.begin(arrival, handler, inbox_key, Reason.BREAKER, now)
        return permit

    def _will_be_tried(self, local: bytes) -> bool:
        """Whether the head of a queue is tried again within its time, or as soon as it can be read."""
        queue = self._queues.get(local)
        return queue is not None and queue.reason in (Reason.RETRY, Reason.SCHEMA)

    def requeue_by_order_key(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        permit: Permit,
        now: float,
    ) -> bool:
        """Whether the message has to go behind others after all. Its ordering key is known only with its
        payload: one that waits for that holds all of its message key, and is sorted in when it has its turn.
        The permit goes back, for nothing was tried with it.
        """
        if handler.order_by is None or arrival.message is None:
            return False
        gate, unsorted = self.gates[handler.name], queue_of_key(arrival, handler)
        if arrival.queue not in (b"", unsorted):
            return False
        local = self.local_of(arrival, handler)
        if local == unsorted or local not in gate.queues:
            return False
        self.stand_behind(arrival, handler, inbox_key, local)
        gate.breaker.give_back(permit)
        if arrival.queue:
            self._leave(arrival, gate, now)
        return True

    def local_of(self, arrival: Arrival, handler: BoundHandler) -> bytes:
        """The local key of the queue that the message would wait in."""
        order = b""
        if handler.order_by is not None and arrival.message is not None:
            try:
                order = handler.order_by(arrival.message).encode()
            except Exception:
                log.exception("order_by_failed", handler=handler.name, action="it is ordered by its key")
        if len(order) > MAX_ORDER_BYTES:
            order = blake2b(order, digest_size=16).digest()
        return arrival.entry.prefix + queue_name(handler.name_bytes, arrival.record.key or b"", order)

    def stand_behind(
        self, arrival: Arrival, handler: BoundHandler, inbox_key: bytes | None, local: bytes
    ) -> None:
        """Let a message wait for its turn, behind an earlier one of its ordering key; a replay, before
        all that are none.
        """
        queue = self._queues.get(local)
        assert queue is not None
        letter, now_ms = is_replay(arrival), _ms(self._writer.now)
        message = message_of(arrival.record, now_ms, letter=letter)
        if letter:  # its place is before them, as if its ordering key had been known from the start
            longer = replayed(queue, message.size, now_ms)
        else:
            longer = append(queue, message.size)
        number = longer.newest_replay if letter else queue.next
        if longer.length > self._options.max_waiting or longer.bytes > self._options.max_waiting_bytes:
            error = QueueFull(
                f"{queue.length} messages ({queue.bytes} bytes) of its ordering key wait for {handler.name}"
                " already: it cannot wait behind them"
            )
            self._refuse(arrival, handler, inbox_key, error)
        else:
            changes = with_message(local, longer, number, message)
            if self._put_or_dead_letter(arrival, handler, inbox_key, changes, None) and letter:
                self.gates[handler.name].unroutable.discard(local)  # its head is another one now

    def begin(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        reason: Reason,
        due: float,
        *,
        attempts: int = 0,
        error: Exception | None = None,
        tried_ms: int = 0,
    ) -> bool:
        """Let a message wait until it is due, first in a queue of its own. False: it is a dead letter."""
        local = self.local_of(arrival, handler)
        gate = self.gates[handler.name]
        if local in gate.queues:  # only where `order_by` does not say the same twice
            self.stand_behind(arrival, handler, inbox_key, local)
            return True
        changes = _first(local, arrival, reason, due, attempts, _ms(self._writer.now), tried_ms=tried_ms)
        if not self._put_or_dead_letter(arrival, handler, inbox_key, changes, error, attempts):
            return False
        gate.add(local)
        return True

    def _put_or_dead_letter(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        changes: list[Change],
        error: Exception | None,
        attempts: int = 0,
    ) -> bool:
        """Stage that a message waits; False: its rows are too large, and it is a dead letter."""
        if (too_large := self.too_large(changes)) is not None:
            self._refuse(arrival, handler, inbox_key, error or too_large, attempts)
            return False
        if inbox_key is not None:
            changes.append(Inbox.entry(inbox_key, int(self._writer.now * 1000), b"waits"))
        self._writer.put(arrival.entry, changes)
        if not arrival.queue:  # else it has been counted
            self._counters.waiting += 1
        return True

    def _refuse(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        error: Exception,
        attempts: int = 0,
    ) -> None:
        """A message cannot wait: the handler tells whoever asked, or it becomes a dead letter."""
        if not self._reply_on_give_up(arrival, handler, inbox_key, error):
            self._letters.give_up(arrival, handler, error, inbox_key, attempts)

    def too_large(self, changes: Sequence[Change]) -> TooLarge | None:
        """Why a message cannot wait in these rows; None: it can."""
        largest = max(len(change.key) + len(change.value or b"") for change in changes)
        if largest <= self._limit:
            return None
        return TooLarge(f"it is to wait, in a row of {largest} bytes; the limit is {self._limit}")

    # -- the head of a queue, at its turn ---------------------------------------------------------------

    def waits_on(self, arrival: Arrival, handler: BoundHandler) -> bool:
        """Whether the head of a queue does not run after all: since it set out, its handler was paused, or a
        replay has been put before it, which is first.
        """
        gate, queue = self.gates[handler.name], self._queues.get(arrival.queue)
        overtaken = queue is None or queue.head != arrival.number
        if not overtaken and arrival.entry.prefix not in gate.held:
            return False
        gate.running.discard(arrival.queue)
        if arrival.permit is not None:
            gate.breaker.give_back(arrival.permit)
        return True

    # -- after an attempt -------------------------------------------------------------------------------

    def succeeded(self, arrival: Arrival, handler: BoundHandler, permit: Permit, now: float) -> None:
        """The outcome is staged; whoever has waited behind the message is next."""
        gate = self.gates[handler.name]
        gate.record(permit, ok=True, now=now)
        gate.last_success = now
        if arrival.queue:
            self._leave(arrival, gate, now)
            if is_replay(arrival):
                changes, told = self._letters.succeeded(arrival.record, handler.name, now)
                self._writer.put(arrival.entry, changes)
                arrival.entry.sends.extend(told)
                self._counters.replayed += 1

    def failed(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        error: Exception,
        attempts: int,
        permit: Permit,
        now: float,
    ) -> Permit | None:
        """The handler raised, at its `attempts`-th attempt. Returns a permit to try again at once; None: the
        message waits, or is a dead letter.
        """
        gate = self.gates[handler.name]
        kind = classify(error, handler.retry)
        if isinstance(error, NotYet):  # no fault of the outside, and in time it will be known
            gate.record(permit, ok=True, now=now)
            self._log_failure(arrival, handler, error, kind, attempts, "NotYet", NOT_YET_PAUSE)
            due = now + NOT_YET_PAUSE
            self._wait(arrival, handler, inbox_key, Reason.RETRY, due, now, attempts - 1, error)
            return None
        if isinstance(error, DataError) and kind is FailureKind.PERMANENT:
            gate.give_back(permit, now=now)
        else:
            gate.record(permit, ok=kind is FailureKind.PERMANENT, now=now)
        if gate.away and arrival.queue and kind is not FailureKind.PERMANENT:
            # A probe that failed while nothing says that the outside is back: it is not the message's fault.
            self._log_failure(arrival, handler, error, kind, attempts - 1, "probe failed")
            self.put_off(arrival, gate, Reason.BREAKER, now, attempts - 1, now)
            return None
        deadline = None if is_replay(arrival) else arrival.deadline
        away = self._away(arrival, gate, now)
        decision = decide(kind, attempts, policy=handler.retry, now=now, deadline=deadline, away=away)
        delay = decision.delay if isinstance(decision, Later | PutOff) else 0.0
        self._log_failure(arrival, handler, error, kind, attempts, type(decision).__name__, delay)
        match decision:
            case TryAgain():
                held = arrival.entry.prefix in gate.held
                again = None if held else gate.breaker.acquire(now)
                if again is None:
                    reason = Reason.PAUSED if held else Reason.BREAKER
                    self._wait(arrival, handler, inbox_key, reason, now, now, attempts, error)
                return again
            case Later():
                if self._wait(arrival, handler, inbox_key, Reason.RETRY, decision.due, now, attempts, error):
                    self._counters.retries += 1
                    self._mirror_to_retry_topic(arrival, handler, error, attempts, decision)
            case PutOff():
                self.put_off(arrival, gate, Reason.RETRY, decision.due, attempts - 1, now)
            case GiveUp() | Expired():
                self.give_up(arrival, handler, inbox_key, error, attempts, now)
        return None

    def _away(self, arrival: Arrival, gate: HandlerGate, now: float) -> float | None:
        """Seconds until the message is tried again while nothing of its handler has succeeded since it was
        tried last; None: something has, it was not tried before, or it has waited for too long already.
        """
        record = arrival.record
        if is_replay(arrival):
            return None  # whoever asked for it is to hear of it: nobody can settle the letter meanwhile
        if not isinstance(record, Waiting) or now > record.waits_since + self._options.outage_patience:
            return None
        queue = self._queues.get(arrival.queue)
        if queue is None or not queue.tried_ms or _ms(gate.last_success) > queue.tried_ms:
            return None
        return gate.breaker.policy.max_open_for

    def give_up(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        error: Exception,
        attempts: int,
        now: float,
    ) -> None:
        """The handler tells whoever asked, or the message becomes a dead letter of it. The next of its
        ordering key has its turn, or waits on where the policy says so, until an operator has settled the
        letter.
        """
        gate = self.gates[handler.name]
        if self._reply_on_give_up(arrival, handler, inbox_key, error):
            if arrival.queue:
                self._leave(arrival, gate, now)
            return
        local = b""
        changes: list[Change] = []
        if handler.retry.hold_while_dead:
            local, changes = self._hold(arrival, handler, attempts)
        self._letters.give_up(arrival, handler, error, inbox_key, attempts, holds=local[2:])
        if local:
            self._writer.put(arrival.entry, changes)
            gate.add(local)
            gate.running.discard(local)
        elif arrival.queue:
            self._leave(arrival, gate, now)

    def _reply_on_give_up(
        self, arrival: Arrival, handler: BoundHandler, inbox_key: bytes | None, error: Exception
    ) -> bool:
        """Whether the handler tells whoever asked. Not of a replay, which an operator has asked for, nor of a
        message whose payload is elsewhere.
        """
        if handler.on_give_up is None or arrival.message is None or is_replay(arrival):
            return False
        try:
            told = handler.on_give_up(arrival.message, error)
            self._writer.stage(arrival, handler, told, inbox_key)
        except Exception:
            log.exception("give_up_not_told", handler=handler.name, action="it is a dead letter")
            return False
        return True

    def _hold(self, arrival: Arrival, handler: BoundHandler, attempts: int) -> tuple[bytes, list[Change]]:
        """The queue that is to wait behind a dead letter, by its local key, and the changes that let it wait;
        nothing where the message cannot be its head.
        """
        now_ms = _ms(self._writer.now)
        if arrival.queue:
            queue = self._queues.get(arrival.queue)
            assert queue is not None
            held = put_off(queue, Reason.DEAD, due_ms=0, attempts=attempts)
            message = message_of(arrival.record, now_ms, letter=True)
            return arrival.queue, with_message(arrival.queue, held, held.head, message)
        local = self.local_of(arrival, handler)
        changes = _first(local, arrival, Reason.DEAD, 0.0, attempts, now_ms, letter=True)
        if local in self.gates[handler.name].queues or self.too_large(changes):  # the former: see `begin`
            return b"", []
        return local, changes

    def _wait(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        reason: Reason,
        due: float,
        tried: float,
        attempts: int,
        error: Exception,
    ) -> bool:
        """Let a message that was tried wait until it is due."""
        if arrival.queue:
            self.put_off(arrival, self.gates[handler.name], reason, due, attempts, tried)
            return True
        more = {"attempts": attempts, "tried_ms": _ms(tried)}
        return self.begin(arrival, handler, inbox_key, reason, due, error=error, **more)

    def put_off(
        self, arrival: Arrival, gate: HandlerGate, reason: Reason, due: float, attempts: int, tried: float
    ) -> None:
        """Let the head of a queue wait on."""
        local = arrival.queue
        queue = self._queues.get(local)
        assert queue is not None
        later = put_off(queue, reason, due_ms=_ms(due), attempts=attempts, tried_ms=_ms(tried))
        self._writer.put(arrival.entry, [set_queue(local[2:], later)])
        gate.running.discard(local)

    def _leave(self, arrival: Arrival, gate: HandlerGate, now: float) -> None:
        """Take the head of a queue away."""
        local = arrival.queue
        queue = self._queues.get(local)
        assert queue is not None
        rest = advance(queue, message_of(arrival.record, 0).size, _ms(now))
        self._writer.put(arrival.entry, without_head(local, queue, rest))
        gate.running.discard(local)
        if rest is None:
            gate.remove(local)

    def _mirror_to_retry_topic(
        self, arrival: Arrival, handler: BoundHandler, error: Exception, attempts: int, later: Later
    ) -> None:
        """Write the record to its retry topic, as it came."""
        record = arrival.record
        added = [
            ("retry-service", handler.name.partition(".")[0].encode()),
            ("retry-handler", handler.name_bytes),
            ("retry-attempt", b"%d" % attempts),
            ("retry-due", rfc3339(later.due).encode()),
            ("retry-error-type", type(error).__name__.encode()),
            ("retry-error-message", message_bytes(error)),
            ("retry-source-partition", b"%d" % record.partition),
            ("retry-source-offset", b"%d" % record.offset),
        ]
        outgoing = Outgoing(record.key, record.value, [*record.headers, *added])
        arrival.entry.sends.append((TP(arrival.route.retries[later.tier - 1], 0), outgoing))

    def _log_failure(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        error: Exception,
        kind: FailureKind,
        attempts: int,
        decision: str,
        delay: float = 0.0,
    ) -> None:
        log.warning(
            "handler_failed",
            handler=handler.name,
            error=f"{type(error).__name__}: {text_of(error)}",
            kind=str(kind),
            attempt=attempts,
            decision=decision,
            delay=delay,
            topic=arrival.record.topic,
            partition=arrival.record.partition,
            offset=arrival.record.offset,
            id=arrival.envelope.id,
        )


def _reasons(queue: Queue) -> list[Reason]:
    """Why the head of a queue waits, and of what came since if replays come before it."""
    return [queue.reason, *(queue.behind or ())[:1]]


def queue_of_key(arrival: Arrival, handler: BoundHandler) -> bytes:
    """The local key of the queue of what has no ordering key but its message key, or none yet."""
    return arrival.entry.prefix + queue_name(handler.name_bytes, arrival.record.key or b"")


def _first(
    local: bytes,
    arrival: Arrival,
    reason: Reason,
    due: float,
    attempts: int,
    now_ms: int,
    *,
    letter: bool = False,
    tried_ms: int = 0,
) -> list[Change]:
    """The changes by which a message waits, first in a queue of its own."""
    message = message_of(arrival.record, now_ms, letter=letter)
    queue = begin(reason, due_ms=_ms(due), attempts=attempts, size=message.size, tried_ms=tried_ms)
    return with_message(local, queue, queue.first, message)


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)  # never early


def _is_late(arrival: Arrival, at_now: Callable[[], float]) -> bool:
    """Whether it had expired by the time it came."""
    until = arrival.envelope.deadline
    return until is not None and until < at_now()


def is_replay(arrival: Arrival) -> bool:
    """Whether an operator has the message tried again: it is a dead letter."""
    return isinstance(arrival.record, Waiting) and arrival.record.letter
