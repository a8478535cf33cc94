"""The check before an attempt: may the handler see the message now? If not, the message waits or ends.

It is skipped while the gate of the handler is clear: most messages never come here. Times are epoch seconds.
"""

from __future__ import annotations

from typing import NamedTuple

from streams.engine.staging.arrival import Arrival, Head
from streams.engine.waiting.queue import Reason
from streams.engine.waiting.waiting import Waiting, queues_of
from streams.engine.way.failure import Detour, never_read
from streams.errors import MessageExpired, NewerSchema, SchemaNeverAnnounced, Undecodable, UnknownSchema
from streams.model.policy.breaker import BreakerState


class Wait(NamedTuple):
    """A message must wait until it is due, in the queue with this `local` key."""

    reason: Reason
    due: float
    local: bytes


def may_run(waiting: Waiting, arrival: Arrival, now: float) -> bool:
    """Whether a handler may see a message now, if its gate is not clear. True: the attempt has its permit.
    False: the message waits, or was given up.
    """
    if isinstance(arrival, Head) and is_overtaken(waiting, arrival):
        return False
    by_key, by_order = queues_of(arrival, arrival.handler)
    if isinstance(arrival.error, UnknownSchema):
        found: bool | Wait | Exception = _await_schema(waiting, arrival, arrival.error, by_key, now)
    elif isinstance(arrival, Head):
        # Dead-lettering respects key order, too.
        behind = _behind_others(waiting, arrival, by_key, by_order, now)
        found = behind or arrival.error or _expired(waiting, arrival, now) or True
    else:
        found = _admit_new(waiting, arrival, by_key, by_order, now)
    if isinstance(found, bool):
        return found
    detour = Detour(waiting, arrival, arrival.handler, waiting.gates[arrival.handler.name], now)
    if not isinstance(found, Wait):
        detour.give_up(found)
        return False
    local = detour.wait_until(found.reason, found.due, None, found.local)
    if local and found.reason is Reason.SCHEMA and isinstance(arrival.error, UnknownSchema):
        since = now if detour.head is None else detour.head.since
        name, is_newer = arrival.error.fingerprint.encode(), isinstance(arrival.error, NewerSchema)
        detour.gate.unread.add(local, arrival.record.topic, name, since, newer=is_newer)
    return False


def is_overtaken(waiting: Waiting, head: Head) -> bool:
    """Whether the head of a queue may not run after all: since it was dispatched, an operator has paused its
    handler, put a replay before it, or taken it out. If so, its permit is given back.
    """
    gate, queue = waiting.gates[head.handler.name], waiting.queues.get(head.queue)
    overtaken = queue is None or queue.head != head.number
    if not overtaken and head.entry.prefix not in gate.shut:
        return False
    gate.running.discard(head.queue)
    gate.breaker.give_back(head.attempt.permit)
    return True


def may_go_on(waiting: Waiting, arrival: Arrival, now: float) -> bool:
    """Whether a handler may see a message after its payload was fetched. Only now is its ordering key known,
    so it may have to wait behind others of that key. A waiting message may have expired during the fetch.
    """
    handler = arrival.handler
    detour = Detour(waiting, arrival, handler, waiting.gates[handler.name], now)
    behind = _behind_others(waiting, arrival, *queues_of(arrival, handler), now)
    if behind is not None:
        detour.wait_until(behind.reason, behind.due, None, behind.local)
        return False
    expired = None if detour.head is None else _expired(waiting, detour.head, now)
    if expired is not None:
        detour.give_up(expired)
    return expired is None


def _admit_new(waiting: Waiting, arrival: Arrival, by_key: bytes, by_order: bytes, now: float) -> bool | Wait:
    """Whether the handler may see a message that was just read. A handler that accepts expired messages sees
    them at once, unless an earlier message of the key waits for a retry or its schema, and no pause or open
    breaker keeps it waiting.
    """
    handler, partition = arrival.handler, arrival.entry.prefix
    gate, until = waiting.gates[handler.name], arrival.envelope.deadline
    if handler.accepts_expired and arrival.inbox_key is None and until is not None and until < now:
        queue = waiting.queues.get(by_key)
        is_tried = queue is not None and queue.reason in (Reason.RETRY, Reason.SCHEMA)
        return partition in gate.shut or gate.breaker.state is BreakerState.OPEN or not is_tried
    local = by_key if by_key in gate.queues else by_order
    if local in gate.queues:
        return Wait(Reason.NEXT, now, local)
    if partition in gate.pauses:
        return Wait(Reason.PAUSED, now, by_order)
    if gate.breaker.state is not BreakerState.CLOSED:
        permit = gate.breaker.acquire(now)
        if permit is None:
            return Wait(Reason.BREAKER, now, by_order)
        arrival.attempt.permit = permit
    return True


def _behind_others(
    waiting: Waiting, arrival: Arrival, by_key: bytes, by_order: bytes, now: float
) -> Wait | None:
    """How a message waits behind others of its ordering key; None: it need not. The ordering key is known
    only with the payload; until then, the message holds back its whole message key. A message that waits
    gives its permit back, because nothing was tried.
    """
    gate = waiting.gates[arrival.handler.name]
    if by_order == by_key or by_order not in gate.queues:
        return None
    if isinstance(arrival, Head) and arrival.queue != by_key:
        return None
    gate.breaker.give_back(arrival.attempt.permit)
    return Wait(Reason.NEXT, now, by_order)


def _expired(waiting: Waiting, head: Head, now: float) -> MessageExpired | None:
    """The error of a waiting message that expired after its turn came, while others of its key ran or its
    payload was fetched. Its permit is given back. None: it may be tried.
    """
    until = head.envelope.deadline
    if head.is_replay or until is None or until >= now:
        return None
    waiting.gates[head.handler.name].breaker.give_back(head.attempt.permit)
    return MessageExpired(f"its deadline was {now - until:.1f} s ago when its attempt was to begin")


def _await_schema(
    waiting: Waiting, arrival: Arrival, unknown: UnknownSchema, by_key: bytes, now: float
) -> Wait | MessageExpired | SchemaNeverAnnounced | Undecodable:
    """How a message waits that cannot be decoded yet. Its ordering key is unknown, so all later messages of
    its message key wait behind it. Returns an error if it has waited for too long, or has expired.
    """
    gate, patience = waiting.gates[arrival.handler.name], waiting.options.schema_patience
    head = arrival if isinstance(arrival, Head) else None
    if head is None and by_key in gate.queues:
        return Wait(Reason.NEXT, now, by_key)
    since = now if head is None else head.since
    deadline = None if head is not None and head.is_replay else arrival.envelope.deadline
    over: MessageExpired | SchemaNeverAnnounced | Undecodable | None = None
    if deadline is not None and deadline < now:
        over = MessageExpired(f"its deadline was {now - deadline:.1f} s ago, and it waits: {unknown}")
    elif since + patience <= now:
        over = never_read(unknown, patience, since)
    if over is not None:
        if head is not None:
            gate.unread.forget(head.queue)
        return over
    if head is None and arrival.entry.prefix in gate.pauses:
        return Wait(Reason.PAUSED, now, by_key)
    due = since + patience if deadline is None else min(since + patience, deadline + 0.001)
    return Wait(Reason.SCHEMA, due, by_key if head is None else head.queue)
