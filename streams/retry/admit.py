"""May a handler see a message now? Else the message waits, or is given up (docs/adr/0009, docs/adr/0016).

Times are epoch seconds.
"""

from __future__ import annotations

from streams.errors import MessageExpired, SchemaNeverAnnounced, UnknownSchema
from streams.model.envelope import rfc3339
from streams.policy.breaker import BreakerState
from streams.retry.failures import give_up
from streams.retry.queue import Reason, queue_of_key, queue_of_order
from streams.retry.waiting import CannotWait, Waiting
from streams.staging.arrival import Arrival, Attempt


def may_run(waiting: Waiting, attempt: Attempt, now: float) -> bool:
    """Whether a handler may see a message now, where something waits or the gate is shut. The attempt has its
    permit then. Else the message waits, or was given up.
    """
    arrival = attempt.arrival
    try:
        if isinstance(arrival.error, UnknownSchema):
            _await_schema(waiting, attempt, arrival.error, now)
            return False
        if arrival.queue:
            return _admit_head(waiting, attempt, now)
        return _admit_new(waiting, attempt, now)
    except CannotWait as full:
        give_up(waiting, attempt, full, now)
        return False


def _admit_new(waiting: Waiting, attempt: Attempt, now: float) -> bool:
    """Whether the handler may see a message that was just read. One that accepts expired messages sees them
    at once, unless an earlier message of the key is to be tried again. Raises CannotWait.
    """
    arrival, handler = attempt.arrival, attempt.handler
    gate = waiting.gates[handler.name]
    local = queue_of_key(arrival, handler)
    if handler.accepts_expired and attempt.inbox_key is None and _has_expired(arrival, now):
        held = arrival.entry.prefix in gate.shut or gate.breaker.state is BreakerState.OPEN
        return held or not _will_be_tried(waiting, local)
    if handler.order_by is not None and local not in gate.queues:
        local = queue_of_order(arrival, handler)
    if local in gate.queues:
        waiting.wait(attempt, Reason.NEXT, now, now, local=local)
        return False
    if arrival.entry.prefix in gate.pauses:
        waiting.wait(attempt, Reason.PAUSED, now, now)
        return False
    if gate.breaker.state is BreakerState.CLOSED:
        return True
    permit = gate.breaker.acquire(now)
    if permit is None:
        waiting.wait(attempt, Reason.BREAKER, now, now)
        return False
    attempt.permit = permit
    return True


def _will_be_tried(waiting: Waiting, local: bytes) -> bool:
    """Whether the head of a queue is tried again within its time, or as soon as its schema is known."""
    queue = waiting.queues.get(local)
    return queue is not None and queue.reason in (Reason.RETRY, Reason.SCHEMA)


def _admit_head(waiting: Waiting, attempt: Attempt, now: float) -> bool:
    """Whether the handler may see the head of a queue. Else it waits, or was given up."""
    arrival = attempt.arrival
    if is_overtaken(waiting, attempt):
        return False
    if arrival.error is not None:
        give_up(waiting, attempt, arrival.error, now)
        return False
    if arrival.permit is None:
        return False
    attempt.permit = arrival.permit
    return not requeue_by_order_key(waiting, attempt, now)


def is_overtaken(waiting: Waiting, attempt: Attempt) -> bool:
    """Whether the head of a queue may not run after all: since it was dispatched, an operator has paused its
    handler, put a replay before it, or taken it out. It gives its permit back.
    """
    arrival, gate = attempt.arrival, waiting.gates[attempt.handler.name]
    queue = waiting.queues.get(arrival.queue)
    overtaken = queue is None or queue.head != arrival.number
    if not overtaken and arrival.entry.prefix not in gate.shut:
        return False
    gate.running.discard(arrival.queue)
    if arrival.permit is not None:
        gate.breaker.give_back(arrival.permit)
    return True


def requeue_by_order_key(waiting: Waiting, attempt: Attempt, now: float) -> bool:
    """Whether a message has to wait behind others of its ordering key, which is known only with its payload.
    Until it has that, it holds back all of its message key. Its permit goes back: nothing was tried with it.
    """
    arrival, handler = attempt.arrival, attempt.handler
    if handler.order_by is None or arrival.message is None:
        return False
    gate, unsorted = waiting.gates[handler.name], queue_of_key(arrival, handler)
    if arrival.queue not in (b"", unsorted):
        return False
    local = queue_of_order(arrival, handler)
    if local == unsorted or local not in gate.queues:
        return False
    gate.breaker.give_back(attempt.permit)
    try:
        waiting.wait(attempt, Reason.NEXT, now, now, local=local)
    except CannotWait as full:
        give_up(waiting, attempt, full, now)
        return True
    waiting.leave(attempt, now)
    return True


def _await_schema(waiting: Waiting, attempt: Attempt, unknown: UnknownSchema, now: float) -> None:
    """Let a message wait that cannot be decoded yet, with all later ones of its message key: its ordering key
    is not known. Give it up when it has waited for too long, or has expired. Raises CannotWait.
    """
    arrival, handler = attempt.arrival, attempt.handler
    if arrival.queue and is_overtaken(waiting, attempt):
        return
    gate, local = waiting.gates[handler.name], queue_of_key(arrival, handler)
    if not arrival.queue and local in gate.queues:
        waiting.wait(attempt, Reason.NEXT, now, now, local=local)
        return
    patience = waiting.options.schema_patience
    since = arrival.since if arrival.queue else now
    deadline = None if arrival.is_replay else arrival.envelope.deadline
    if (over := _why_over(unknown, since, deadline, patience, now)) is not None:
        gate.unread.forget(arrival.queue)
        give_up(waiting, attempt, over, now)
        return
    due = since + patience if deadline is None else min(since + patience, deadline + 0.001)
    if not arrival.queue and arrival.entry.prefix in gate.pauses:
        waiting.wait(attempt, Reason.PAUSED, now, now)
        return
    local = waiting.wait(attempt, Reason.SCHEMA, due, now)
    gate.unread.add(local, arrival.record.topic, unknown.fingerprint.encode(), since)


def _why_over(
    unknown: UnknownSchema, since: float, deadline: float | None, patience: float, now: float
) -> MessageExpired | SchemaNeverAnnounced | None:
    """Why a message waits no longer for its schema; None: it waits."""
    if deadline is not None and deadline < now:
        return MessageExpired(f"its deadline was {now - deadline:.1f} s ago, and it waits: {unknown}")
    if since + patience <= now:
        return SchemaNeverAnnounced(
            f"schema {unknown.fingerprint} was not announced within {patience:g} s from"
            f" {rfc3339(since)}: start a worker that has it, then replay this message"
        )
    return None


def _has_expired(arrival: Arrival, now: float) -> bool:
    """Whether a message had expired when the lane read it."""
    until = arrival.envelope.deadline
    return until is not None and until < now
