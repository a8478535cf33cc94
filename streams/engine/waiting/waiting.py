"""Stage messages that wait for a handler, in queues that are rows, and keep the gates in step.

Times are epoch seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import structlog

from streams.engine.staging.arrival import Arrival, Head
from streams.engine.staging.changes import Change
from streams.engine.staging.entry import Entry
from streams.engine.staging.inbox import inbox_entry
from streams.engine.staging.keys import name_in
from streams.engine.staging.outcomes import Outcomes
from streams.engine.waiting.dead_letters.table import DeadLetters
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.long_queues import LongQueues
from streams.engine.waiting.queue import (
    Reason,
    WaitingQueue,
    advance,
    handler_of,
    ms,
    put_in,
    queue_name,
    set_message,
    set_queue,
)
from streams.engine.waiting.queue_rows import Queues
from streams.errors import (
    NewerSchema,
    QueueFull,
    RowUnreadable,
    TooLarge,
    UnknownSchema,
    ends_process,
)
from streams.model.bound import BoundHandler
from streams.model.envelope import FINGERPRINT, RECORD_OVERHEAD
from streams.model.policy.breaker import BreakerState

log: Final = structlog.get_logger(__name__)

#: Maximum unknown schemas that are logged, each once, because anyone can make up fingerprints.
MOST_LOGGED: Final = 100
#: Longer ordering keys are hashed, because they are part of the keys of rows.
MAX_ORDER_BYTES: Final = 64


class Waits(NamedTuple):
    """A message now waits in the queue with this local key."""

    queue: bytes


class NoRoom(NamedTuple):
    """A message cannot wait, because of this error. Nothing is staged."""

    error: RowUnreadable | QueueFull | TooLarge


class Waiting:
    """The queues of one lane and the gates of its handlers.

    Attributes:
        gates: the gate of each handler.
        queues: reads the queues of all handlers.
        letters, outcomes: stage dead letters, and outcomes of handlers.
        long_queues: tracks long queues.
    """

    def __init__(self, outcomes: Outcomes, letters: DeadLetters, gates: Mapping[str, HandlerGate]) -> None:
        app = outcomes.staging.app
        self.staging = outcomes.staging
        self.options = app.lane_options
        self.gates = gates
        self.queues = Queues(outcomes.staging)
        self.outcomes = outcomes
        self.letters = letters
        self.long_queues = LongQueues(app, gates)
        self._limit = app.lane_options.max_message_bytes - RECORD_OVERHEAD
        self._logged: set[str] = set()

    def load(self, now: float) -> None:
        """Read the committed queues. If messages wait for a handler's breaker, it begins half open."""
        unknown_handlers: set[str] = set()
        for local, queue in self.queues.committed():
            name = handler_of(name_in(local)).decode("utf-8", "replace")
            gate = self.gates.get(name)
            if gate is None:
                unknown_handlers.add(name)
                continue
            gate.add(local)
            if queue is None:  # unreadable, but later messages of its key must not overtake it
                continue
            self.long_queues.note(gate, local, queue, now)
            self.await_schema(gate, local, queue)
            if Reason.BREAKER in reasons(queue) and gate.breaker.state is BreakerState.CLOSED:
                gate.breaker.start_half_open(now)
        for name in sorted(unknown_handlers):
            log.warning("waiting_for_no_handler", handler=name, action="was it renamed? they wait on")

    def await_schema(self, gate: HandlerGate, local: bytes, queue: WaitingQueue) -> None:
        """Watch for the schema that the head of a queue needs, or the first message behind its replays."""
        if Reason.SCHEMA in reasons(queue):
            number = queue.head if queue.reason is Reason.SCHEMA else queue.first
            try:
                message = self.queues.message(local, number)
            except RowUnreadable:
                gate.unroutable.add(local)
                return
            fingerprint = dict(message.headers).get(FINGERPRINT, b"")
            gate.unread.add(local, message.topic, fingerprint, message.waits_since)

    def log_unknown(self, unknown: UnknownSchema) -> None:
        """Log a schema that messages wait for, once."""
        event = "schema_newer" if isinstance(unknown, NewerSchema) else "schema_unknown"
        if unknown.fingerprint not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(unknown.fingerprint)
            log.warning(event, fingerprint=unknown.fingerprint, action=str(unknown))

    def wait(
        self,
        arrival: Arrival,
        reason: Reason,
        due: float,
        now: float,
        error: BaseException | None = None,
        local: bytes = b"",
    ) -> Waits | NoRoom:
        """Let a message wait until it is due: again as the head of its queue, as the first message of a new
        one, or behind others. `local` is the local key of the queue, if that is not the message's own.
        `error` is what its handler has raised now, if it was tried.
        """
        handler = arrival.handler
        own = arrival.queue if isinstance(arrival, Head) else b""
        local = local or own or queues_of(arrival, handler)[1]
        gate, is_head = self.gates[handler.name], local == own
        queue = self.queues.get(local)
        assert queue is not None or not is_head
        if queue is None and local in gate.queues:
            unreadable = f"it is to wait in the queue {name_in(local)!r}, which cannot be read"
            return NoRoom(RowUnreadable(unreadable))
        placed = put_in(queue, name_in(local), arrival, reason, due, now, is_head=is_head, error=error)
        if not is_head:  # a head is in the queue already
            full = self._full(handler, reason, queue, placed.queue)
            if (why_not := full or self.too_large(placed.rows)) is not None:
                return NoRoom(why_not)
        is_dead = reason is Reason.DEAD
        self.staging.put(arrival.entry, placed.rows)
        if arrival.inbox_key is not None and not is_dead:  # a dead letter has its own entry
            arrival.entry.ids.append(inbox_entry(arrival.inbox_key, int(now * 1000), b"waits"))
        gate.add(local)
        if is_head:
            gate.running.discard(local)
            return Waits(local)
        if queue is not None:
            self.long_queues.note(gate, local, placed.queue, now)
            if isinstance(arrival, Head) and arrival.is_replay:
                gate.unroutable.discard(local)  # the queue has a new head
        if isinstance(arrival, Head):
            self.leave(arrival, now)
        elif not is_dead:  # a dead letter is counted elsewhere
            self.staging.counters.waiting += 1
        return Waits(local)

    def _full(
        self, handler: BoundHandler, reason: Reason, queue: WaitingQueue | None, after: WaitingQueue
    ) -> QueueFull | None:
        """Why a message cannot wait behind others; None: it can. `after` is the queue with it. A dead letter
        cannot wait behind others.
        """
        if queue is None:
            return None
        fits = after.length <= self.options.max_waiting and after.bytes <= self.options.max_waiting_bytes
        if fits and reason is not Reason.DEAD:
            return None
        return QueueFull(
            f"{queue.length} messages ({queue.bytes} bytes) of its ordering key wait for"
            f" {handler.name} already: it cannot wait behind them"
        )

    def too_large(self, changes: Sequence[Change]) -> TooLarge | None:
        """Why a message cannot wait in these rows, if one is too large; None: it can."""
        largest = max(len(change.key) + len(change.value or b"") for change in changes)
        if largest <= self._limit:
            return None
        return TooLarge(f"it is to wait, in a row of {largest} bytes; the limit is {self._limit}")

    def succeeded(self, arrival: Arrival, gate: HandlerGate, seconds: float, now: float) -> None:
        """Count a successful attempt, and how long it took. A message that had waited leaves its queue; after
        a replay, the dead letter is removed. `gate` is its handler's.
        """
        gate.handled(arrival.attempt.permit, seconds, now)
        if gate.unavailable:
            gate.unavailable.pop(arrival.place, None)
        if isinstance(arrival, Head):
            self.leave(arrival, now)
            if arrival.is_replay:
                self.letters.succeeded(arrival.entry, arrival.record, gate.handler, now)

    def leave(self, head: Head, now: float) -> None:
        """Remove the head of a queue, so that the message behind it is next."""
        local, gate = head.queue, self.gates[head.handler.name]
        queue = self.queues.get(local)
        assert queue is not None
        rest, name = advance(queue, head.entry.size, ms(now)), name_in(local)
        self.staging.put(head.entry, [set_queue(name, rest), set_message(name, queue.head, None)])
        gate.running.discard(local)
        gate.not_yet.pop(local, None)
        if rest is None:
            gate.remove(local)
        elif local in gate.long_queues:
            self.long_queues.note(gate, local, rest, now)

    def erase(self, entry: Entry, local: bytes, queue: WaitingQueue) -> None:
        """Remove a queue with all messages in it."""
        name = name_in(local)
        numbers = [*range(queue.first, queue.next), *queue.numbers]
        gone = [set_message(name, number, None) for number in dict.fromkeys(numbers)]
        self.staging.put(entry, [set_queue(name, None), *gone])
        gate = self.gates.get(handler_of(name).decode())
        if gate is not None:
            gate.unroutable.discard(local)
            gate.unavailable.clear()  # other messages are noted again at their next attempt
            gate.remove(local)


def queues_of(arrival: Arrival, handler: BoundHandler) -> tuple[bytes, bytes]:
    """The local keys of the queues in which a message may wait: for its message key alone, and for its
    ordering key. They are equal if the handler has no `order_by`, or the message cannot be read yet.
    """
    prefix, name, key = arrival.entry.prefix, handler.name_bytes, arrival.key
    order = b""
    if handler.order_by is not None and arrival.message is not None:
        try:
            order = handler.order_by(arrival.message).encode()
        except BaseException as error:
            if ends_process(error):
                raise
            log.exception("order_by_failed", handler=handler.name, action="it is ordered by its key")
        if len(order) > MAX_ORDER_BYTES:
            order = blake2b(order, digest_size=16).digest()
    by_key = prefix + queue_name(name, key)
    return by_key, by_key + order


def reasons(queue: WaitingQueue) -> list[Reason]:
    """Why the head of a queue waits, and the first message behind the replays, if there are any."""
    return [queue.reason, *(queue.behind or ())[:1]]
