"""What waits for a handler: rows of queues, and the gates over them. Every change of a queue is staged here.

Times are epoch seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import structlog

from streams.dead_letters.table import DeadLetters
from streams.errors import QueueFull, RowUnreadable, TooLarge, UnknownSchema
from streams.model.application import BoundHandler
from streams.model.envelope import FINGERPRINT, RECORD_OVERHEAD
from streams.policy.breaker import BreakerState
from streams.retry.crowds import Crowds
from streams.retry.gate import HandlerGate
from streams.retry.queue import (
    Queue,
    Reason,
    advance,
    append,
    begin,
    handler_of,
    is_replay,
    message_of,
    put_off,
    queue_name,
    replayed,
    set_queue,
)
from streams.retry.queues import Queues, with_message, without_head
from streams.staging.arrival import Arrival, Attempt
from streams.staging.changes import Change
from streams.staging.inbox import inbox_entry
from streams.staging.keys import name_in
from streams.staging.outcomes import Outcomes

log = structlog.get_logger(__name__)

#: An ordering key longer than this is hashed: it is part of the keys of rows.
MAX_ORDER_BYTES = 64
#: Unknown schemas that the log names, each once: anybody can make up fingerprints.
MOST_LOGGED = 100


class CannotWait(Exception):
    """A message that was to wait has no room in a queue: the caller gives it up, because of `why`.

    Attributes:
        may_reply: whether the handler may send a failure reply in place of the dead letter.
    """

    def __init__(self, why: Exception, *, may_reply: bool = True) -> None:
        self.why = why
        self.may_reply = may_reply
        super().__init__(str(why))


class Waiting:
    """The queues of one lane and the gates of its handlers. Nothing else changes either.

    Attributes:
        gates: whether messages run now, by handler.
        queues: those of all handlers.
        letters, outcomes: stage the end of a message that waits no longer.
        crowds: the queues that are long.
    """

    def __init__(self, outcomes: Outcomes, letters: DeadLetters, gates: Mapping[str, HandlerGate]) -> None:
        app = outcomes.staging.app
        self.staging = outcomes.staging
        self.options = app.lane_options
        self.gates = gates
        self.queues = Queues(outcomes.staging)
        self.outcomes = outcomes
        self.letters = letters
        self.crowds = Crowds(app, gates)
        self._limit = app.lane_options.max_message_bytes - RECORD_OVERHEAD
        self._logged: set[str] = set()

    def load(self, now: float) -> None:
        """Read the committed queues. A handler whose messages wait for its breaker begins with probes."""
        unknown_handlers: set[str] = set()
        for local, queue in self.queues.committed():
            name = handler_of(name_in(local)).decode("utf-8", "replace")
            gate = self.gates.get(name)
            if gate is None:
                unknown_handlers.add(name)
                continue
            gate.add(local)
            if queue is None:  # unreadable: later messages of its key must not overtake it
                continue
            self.crowds.note(gate, local, queue, now)
            self.await_schema(gate, local, queue)
            if Reason.BREAKER in _reasons(queue) and gate.breaker.state is BreakerState.CLOSED:
                gate.breaker.start_half_open(now)
        for name in sorted(unknown_handlers):
            log.warning("waiting_for_no_handler", handler=name, action="was it renamed? they wait on")

    def await_schema(self, gate: HandlerGate, local: bytes, queue: Queue) -> None:
        """Watch for the schema that the head of a queue, or the first message behind its replays, needs."""
        if Reason.SCHEMA in _reasons(queue):
            number = queue.head if queue.reason is Reason.SCHEMA else queue.first
            try:
                message = self.queues.message(local, number)
            except RowUnreadable:
                gate.unroutable.add(local)
                return
            fingerprint = dict(message.headers).get(FINGERPRINT, b"")
            gate.unread.add(local, message.topic, fingerprint, message.waits_since)

    def log_unknown(self, unknown: UnknownSchema) -> None:
        """Name a schema that messages wait for in the log, once."""
        if unknown.fingerprint not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(unknown.fingerprint)
            log.warning("schema_unknown", fingerprint=unknown.fingerprint, action=str(unknown))

    def begin(
        self,
        attempt: Attempt,
        reason: Reason,
        due: float,
        now: float,
        *,
        error: Exception | None = None,
        tried: float = 0.0,
    ) -> None:
        """Begin a queue with a message, which waits until it is due. Raises CannotWait: because of `error`,
        with which its handler failed, if there is one.
        """
        local = queue_of_order(attempt.arrival, attempt.handler)
        gate = self.gates[attempt.handler.name]
        if local in gate.queues:  # only where `order_by` returns another key than a moment ago
            self.requeue_behind(attempt, local, now)
            return
        changes = _first(local, attempt, reason, due, now, tried=tried)
        if (too_large := self.too_large(changes)) is not None:
            raise CannotWait(error or too_large)
        self._put(attempt, changes, now)
        gate.add(local)

    def requeue_behind(self, attempt: Attempt, local: bytes, now: float) -> None:
        """Add a message to a queue: behind all others, or a replay before all that are none. Raises
        CannotWait.
        """
        arrival, handler, queue = attempt.arrival, attempt.handler, self.queues.get(local)
        if queue is None:
            unreadable = RowUnreadable(f"it is to wait in the queue {name_in(local)!r}, which cannot be read")
            raise CannotWait(unreadable, may_reply=False)
        letter = is_replay(arrival.record)
        message = message_of(arrival.record, ms(now), letter=letter)
        if letter:  # its place is before them, as if its ordering key had been known from the start
            longer = replayed(queue, message.size, ms(now))
        else:
            longer = append(queue, message.size)
        number = longer.newest_replay if letter else queue.next
        if longer.length > self.options.max_waiting or longer.bytes > self.options.max_waiting_bytes:
            raise CannotWait(
                QueueFull(
                    f"{queue.length} messages ({queue.bytes} bytes) of its ordering key wait for"
                    f" {handler.name} already: it cannot wait behind them"
                )
            )
        changes = with_message(local, longer, number, message)
        if (too_large := self.too_large(changes)) is not None:
            raise CannotWait(too_large)
        self._put(attempt, changes, now)
        gate = self.gates[handler.name]
        self.crowds.note(gate, local, longer, now)
        if letter:
            gate.unroutable.discard(local)  # its head is another one now

    def _put(self, attempt: Attempt, changes: list[Change], now: float) -> None:
        """Stage the rows of a message that waits."""
        if attempt.inbox_key is not None:
            changes.append(inbox_entry(attempt.inbox_key, int(now * 1000), b"waits"))
        self.staging.put(attempt.arrival.entry, changes)
        if not attempt.arrival.queue:  # else it has been counted
            self.staging.counters.waiting += 1

    def too_large(self, changes: Sequence[Change]) -> TooLarge | None:
        """Why a message cannot wait in these rows; None: it can."""
        largest = max(len(change.key) + len(change.value or b"") for change in changes)
        if largest <= self._limit:
            return None
        return TooLarge(f"it is to wait, in a row of {largest} bytes; the limit is {self._limit}")

    def wait(self, attempt: Attempt, reason: Reason, due: float, now: float, error: Exception) -> None:
        """Let a message that was tried now wait until it is due. Raises CannotWait because of `error`."""
        if attempt.arrival.queue:
            self.postpone(attempt, reason, due, tried=now)
        else:
            self.begin(attempt, reason, due, now, error=error, tried=now)

    def postpone(self, attempt: Attempt, reason: Reason, due: float, *, tried: float = 0.0) -> None:
        """Let the head of a queue wait until another time."""
        local = attempt.arrival.queue
        queue = self.queues.get(local)
        assert queue is not None
        later = put_off(queue, reason, due_ms=ms(due), attempts=attempt.attempts, tried_ms=ms(tried))
        self.staging.put(attempt.arrival.entry, [set_queue(name_in(local), later)])
        self.gates[attempt.handler.name].running.discard(local)

    def leave(self, attempt: Attempt, now: float) -> None:
        """Remove the head of a queue: the message behind it is next."""
        arrival, gate = attempt.arrival, self.gates[attempt.handler.name]
        local = arrival.queue
        queue = self.queues.get(local)
        assert queue is not None
        rest = advance(queue, message_of(arrival.record, 0).size, ms(now))
        self.staging.put(arrival.entry, without_head(local, queue, rest))
        gate.running.discard(local)
        gate.not_yet.pop(local, None)
        if rest is None:
            gate.remove(local)
        elif local in gate.crowds:
            self.crowds.note(gate, local, rest, now)

    def held(self, attempt: Attempt, now: float) -> tuple[bytes, list[Change]]:
        """The local key of the queue that is to wait behind a dead letter, and its changes for `hold`; empty
        where the message cannot be the head of a queue.
        """
        arrival, handler = attempt.arrival, attempt.handler
        if arrival.queue:
            queue = self.queues.get(arrival.queue)
            assert queue is not None
            dead = put_off(queue, Reason.DEAD, due_ms=0, attempts=attempt.attempts)
            message = message_of(arrival.record, ms(now), letter=True)
            return arrival.queue, with_message(arrival.queue, dead, dead.head, message)
        local = queue_of_order(arrival, handler)
        changes = _first(local, attempt, Reason.DEAD, 0.0, now, letter=True)
        if local in self.gates[handler.name].queues or self.too_large(changes):  # the former: see `begin`
            return b"", []
        return local, changes

    def hold(self, attempt: Attempt, local: bytes, changes: list[Change]) -> None:
        """Let a queue wait behind a dead letter."""
        gate = self.gates[attempt.handler.name]
        self.staging.put(attempt.arrival.entry, changes)
        gate.add(local)
        gate.running.discard(local)


def queue_of_key(arrival: Arrival, handler: BoundHandler) -> bytes:
    """The local key of the queue of a message that is ordered by its message key alone."""
    return arrival.entry.prefix + queue_name(handler.name_bytes, arrival.record.key or b"")


def queue_of_order(arrival: Arrival, handler: BoundHandler) -> bytes:
    """The local key of the queue in which a message would wait."""
    order = b""
    if handler.order_by is not None and arrival.message is not None:
        try:
            order = handler.order_by(arrival.message).encode()
        except Exception:
            log.exception("order_by_failed", handler=handler.name, action="it is ordered by its key")
    if len(order) > MAX_ORDER_BYTES:
        order = blake2b(order, digest_size=16).digest()
    return arrival.entry.prefix + queue_name(handler.name_bytes, arrival.record.key or b"", order)


def ms(seconds: float) -> int:
    """Milliseconds, never early."""
    return math.ceil(seconds * 1000)


def _first(
    local: bytes,
    attempt: Attempt,
    reason: Reason,
    due: float,
    now: float,
    *,
    letter: bool = False,
    tried: float = 0.0,
) -> list[Change]:
    """The changes that begin a queue with a message."""
    message = message_of(attempt.arrival.record, ms(now), letter=letter)
    queue = begin(reason, due_ms=ms(due), attempts=attempt.attempts, size=message.size, tried_ms=ms(tried))
    return with_message(local, queue, queue.first, message)


def _reasons(queue: Queue) -> list[Reason]:
    """Why the head of a queue waits, and why the first message behind replays does, if there are any."""
    return [queue.reason, *(queue.behind or ())[:1]]
