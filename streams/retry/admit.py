"""May a handler see a message now? Else the message waits, or is given up (docs/adr/0009, docs/adr/0016).

Times are epoch seconds.
"""

from __future__ import annotations

from typing import NamedTuple

from streams.errors import MessageExpired, SchemaNeverAnnounced, UnknownSchema
from streams.model.envelope import rfc3339
from streams.policy.breaker import BreakerState
from streams.retry.failures import give_up, wait_or_give_up
from streams.retry.queue import Reason
from streams.retry.queue_changes import queue_of_key, queue_of_order
from streams.retry.waiting import Waiting
from streams.staging.arrival import Arrival, Attempt


class Wait(NamedTuple):
    """A message waits until it is due; `local` is the local key of the queue, where that is not its own."""

    reason: Reason
    due: float
    local: bytes = b""


def may_run(waiting: Waiting, attempt: Attempt, now: float) -> bool:
    """Whether a handler may see a message now, where something waits or the gate is shut. The attempt has its
    permit then. Else the message waits, or was given up.
    """
    arrival = attempt.arrival
    if arrival.queue and is_overtaken(waiting, attempt):
        return False
    if isinstance(arrival.error, UnknownSchema):
        found: bool | Wait | Exception = _await_schema(waiting, attempt, arrival.error, now)
    elif arrival.queue:
        found = _admit_head(waiting, attempt, now)
    else:
        found = _admit_new(waiting, attempt, now)
    if isinstance(found, bool):
        return found
    if isinstance(found, Exception):
        give_up(waiting, attempt, found, now)
        return False
    local = wait_or_give_up(waiting, attempt, found.reason, found.due, now, local=found.local)
    if local and found.reason is Reason.SCHEMA and isinstance(arrival.error, UnknownSchema):
        since = arrival.since if arrival.queue else now
        fingerprint = arrival.error.fingerprint.encode()
        waiting.gates[attempt.handler.name].unread.add(local, arrival.record.topic, fingerprint, since)
    return False


def _admit_new(waiting: Waiting, attempt: Attempt, now: float) -> bool | Wait:
    """Whether the handler may see a message that was just read. One that accepts expired messages sees them
    at once, unless an earlier message of the key is to be tried again.
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
        return Wait(Reason.NEXT, now, local)
    if arrival.entry.prefix in gate.pauses:
        return Wait(Reason.PAUSED, now)
    if gate.breaker.state is not BreakerState.CLOSED:
        permit = gate.breaker.acquire(now)
        if permit is None:
            return Wait(Reason.BREAKER, now)
        attempt.permit = permit
    return True


def _will_be_tried(waiting: Waiting, local: bytes) -> bool:
    """Whether the head of a queue is tried again within its time, or as soon as its schema is known."""
    queue = waiting.queues.get(local)
    return queue is not None and queue.reason in (Reason.RETRY, Reason.SCHEMA)


def _admit_head(waiting: Waiting, attempt: Attempt, now: float) -> bool | Wait | Exception:
    """Whether the handler may see the head of a queue."""
    arrival = attempt.arrival
    if arrival.error is not None:  # also what is given up has its turn among those of its ordering key
        return _by_order_key(waiting, attempt, now) or arrival.error
    if arrival.permit is None:
        return False
    attempt.permit = arrival.permit
    return _by_order_key(waiting, attempt, now) or True


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
    """Whether a message, whose payload is there now, has to wait behind others of its ordering key."""
    if (wait := _by_order_key(waiting, attempt, now)) is None:
        return False
    wait_or_give_up(waiting, attempt, wait.reason, wait.due, now, local=wait.local)
    return True


def _by_order_key(waiting: Waiting, attempt: Attempt, now: float) -> Wait | None:
    """Where a message has to wait behind others of its ordering key, which is known only with its payload.
    Until it has that, it holds back all of its message key. Its permit goes back: nothing was tried with it.
    """
    arrival, handler = attempt.arrival, attempt.handler
    if handler.order_by is None or arrival.message is None:
        return None
    gate, unsorted = waiting.gates[handler.name], queue_of_key(arrival, handler)
    if arrival.queue not in (b"", unsorted):
        return None
    local = queue_of_order(arrival, handler)
    if local == unsorted or local not in gate.queues:
        return None
    gate.breaker.give_back(attempt.permit)
    return Wait(Reason.NEXT, now, local)


def _await_schema(
    waiting: Waiting, attempt: Attempt, unknown: UnknownSchema, now: float
) -> Wait | MessageExpired | SchemaNeverAnnounced:
    """How a message waits that cannot be decoded yet, with all later ones of its message key: its ordering
    key is not known. An error: it has waited for too long, or has expired.
    """
    arrival, handler = attempt.arrival, attempt.handler
    gate, local = waiting.gates[handler.name], queue_of_key(arrival, handler)
    if not arrival.queue and local in gate.queues:
        return Wait(Reason.NEXT, now, local)
    patience = waiting.options.schema_patience
    since = arrival.since if arrival.queue else now
    deadline = None if arrival.is_replay else arrival.envelope.deadline
    if (over := _why_over(unknown, since, deadline, patience, now)) is not None:
        gate.unread.forget(arrival.queue)
        return over
    if not arrival.queue and arrival.entry.prefix in gate.pauses:
        return Wait(Reason.PAUSED, now)
    due = since + patience if deadline is None else min(since + patience, deadline + 0.001)
    return Wait(Reason.SCHEMA, due)


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
