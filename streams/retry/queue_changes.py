"""How queues of waiting messages change: functions without state; `waiting` stages the changes (ADR 9)."""

from __future__ import annotations

from hashlib import blake2b

import structlog
from msgspec.structs import replace

from streams.dead_letters.row import capped
from streams.errors import text_of
from streams.model.application import BoundHandler
from streams.retry.queue import (
    MAX_ERROR_BYTES,
    REPLAYED,
    Reason,
    WaitingMessage,
    WaitingQueue,
    message_of,
    ms,
    queue_name,
    set_message,
    set_queue,
)
from streams.staging.arrival import Arrival, Attempt
from streams.staging.changes import Change
from streams.staging.inbox import inbox_entry
from streams.staging.keys import name_in

log = structlog.get_logger(__name__)

#: An ordering key longer than this is hashed: it is part of the keys of rows.
MAX_ORDER_BYTES = 64

# -- which queue ---------------------------------------------------------------------------------------


def queue_of_key(arrival: Arrival, handler: BoundHandler) -> bytes:
    """The local key of the queue of a message that is ordered by its message key alone."""
    return arrival.entry.prefix + queue_name(handler.name_bytes, arrival.record.key or b"")


def queue_of_order(arrival: Arrival, handler: BoundHandler) -> bytes:
    """The local key of the queue in which a message would wait."""
    if handler.order_by is None or arrival.message is None:
        return queue_of_key(arrival, handler)
    try:
        order = handler.order_by(arrival.message).encode()
    except Exception:
        log.exception("order_by_failed", handler=handler.name, action="it is ordered by its key")
        order = b""
    if len(order) > MAX_ORDER_BYTES:
        order = blake2b(order, digest_size=16).digest()
    return arrival.entry.prefix + queue_name(handler.name_bytes, arrival.record.key or b"", order)


def error_text(error: Exception | None) -> str:
    """An error as it is kept with a queue; empty for None."""
    return "" if error is None else capped(f"{type(error).__name__}: {text_of(error)}", MAX_ERROR_BYTES)


# -- the value ------------------------------------------------------------------------------------------


def begin(
    reason: Reason, *, due_ms: int, attempts: int, size: int, tried_ms: int = 0, error: str = ""
) -> WaitingQueue:
    """A queue of one message, of `size` bytes."""
    return WaitingQueue(reason, due_ms, 0, 1, size, attempts, tried_ms=tried_ms, error=error)


def append(queue: WaitingQueue, size: int) -> WaitingQueue:
    """One more message waits behind the others."""
    return replace(queue, next=queue.next + 1, bytes=queue.bytes + size)


def postpone(
    queue: WaitingQueue, reason: Reason, *, due_ms: int, attempts: int, tried_ms: int = 0, error: str = ""
) -> WaitingQueue:
    """The head is tried later, or not by itself."""
    return replace(queue, reason=reason, due_ms=due_ms, attempts=attempts, tried_ms=tried_ms, error=error)


def advance(queue: WaitingQueue, size: int, now_ms: int) -> WaitingQueue | None:
    """The head, of `size` bytes, has gone: the next one's turn; None: none is left."""
    if queue.length == 1:
        return None
    queue = replace(queue, bytes=_less(queue.bytes, size))
    if not queue.replays:
        return postpone(replace(queue, first=queue.first + 1), Reason.NEXT, due_ms=now_ms, attempts=0)
    first = queue.first_replay + 1
    while first in queue.gaps:
        first += 1
    gaps = tuple(number for number in queue.gaps if number > first)
    queue = replace(queue, first_replay=first, gaps=gaps)
    if queue.replays:
        return postpone(queue, Reason.REPLAY, due_ms=now_ms, attempts=0)
    reason, due_ms, attempts = queue.behind or (Reason.NEXT, now_ms, 0)
    return postpone(replace(queue, behind=None), reason, due_ms=due_ms, attempts=attempts)


def replayed(queue: WaitingQueue | None, size: int, now_ms: int) -> WaitingQueue:
    """Insert a replay of `size` bytes before messages that are not replays, behind earlier replays."""
    if queue is None:
        return WaitingQueue(Reason.REPLAY, now_ms, 0, 0, size, 0, 0, 1)
    more = replace(queue, next_replay=queue.next_replay + 1, bytes=queue.bytes + size)
    if queue.replays:
        return more
    behind = (queue.reason, queue.due_ms, queue.attempts)
    return postpone(replace(more, behind=behind), Reason.REPLAY, due_ms=now_ms, attempts=0)


def woken(queue: WaitingQueue, number: int, grown: int, now_ms: int) -> WaitingQueue:
    """A message that holds the queue, by its number, is tried again; it has grown by so many bytes."""
    queue = replace(queue, bytes=queue.bytes + grown)
    if number == queue.head:
        return postpone(queue, Reason.REPLAY, due_ms=now_ms, attempts=0)
    return replace(queue, behind=(Reason.REPLAY, now_ms, 0))


def released(queue: WaitingQueue, number: int, size: int, now_ms: int) -> WaitingQueue | None:
    """A replay, or the first message that is none, by its number, has gone; None: none is left."""
    if number == queue.head:
        return advance(queue, size, now_ms)
    queue = replace(queue, bytes=_less(queue.bytes, size))
    if number & REPLAYED:
        return replace(queue, gaps=(*queue.gaps, number ^ REPLAYED))
    behind = None if queue.next - queue.first == 1 else (Reason.NEXT, now_ms, 0)
    return replace(queue, first=queue.first + 1, behind=behind)


def _less(total: int, size: int) -> int:
    return max(0, total - size)  # of what waited before headers were counted, the total has less


# -- with its rows --------------------------------------------------------------------------------------


def with_message(local: bytes, queue: WaitingQueue, number: int, message: WaitingMessage) -> list[Change]:
    """The changes that make a queue what it is, with one more message."""
    name = name_in(local)
    return [set_queue(name, queue), set_message(name, number, message)]


def put_in(
    local: bytes,
    queue: WaitingQueue | None,
    attempt: Attempt,
    reason: Reason,
    due: float,
    now: float,
    *,
    error: Exception | None,
) -> tuple[WaitingQueue, list[Change]]:
    """Let a message wait in a queue: as the head that it is, as the first of a queue that begins, or behind
    all others; a replay before all that are none, as if its ordering key had been known from the start.
    `reason` and `due` (epoch seconds) are those of a head, and `error` what its handler has raised now.
    Returns the new queue and all changes.
    """
    arrival, name, text = attempt.arrival, name_in(local), error_text(error)
    tried_ms = 0 if error is None else ms(now)
    if queue is not None and arrival.queue == local:
        queue = postpone(
            queue, reason, due_ms=ms(due), attempts=attempt.attempts, tried_ms=tried_ms, error=text
        )
        if reason is not Reason.DEAD:
            return queue, [set_queue(name, queue)]
        return queue, with_message(local, queue, queue.head, message_of(arrival.record, ms(now), letter=True))
    letter = arrival.is_replay or reason is Reason.DEAD
    message = message_of(arrival.record, ms(now), letter=letter)
    if queue is None:
        tries, size = attempt.attempts, message.size
        queue = begin(reason, due_ms=ms(due), attempts=tries, size=size, tried_ms=tried_ms, error=text)
        number = queue.first
    elif letter:
        queue = replayed(queue, message.size, ms(now))
        number = queue.newest_replay
    else:
        number, queue = queue.next, append(queue, message.size)
    changes = with_message(local, queue, number, message)
    if attempt.inbox_key is not None and reason is not Reason.DEAD:  # a dead letter has its own entry
        changes.append(inbox_entry(attempt.inbox_key, int(now * 1000), b"waits"))
    return queue, changes


def take_head(
    local: bytes, queue: WaitingQueue, size: int, now: float
) -> tuple[WaitingQueue | None, list[Change]]:
    """Take the head, of `size` bytes, out of a queue: the next one's turn. Returns the new queue, None where
    none is left, and the changes.
    """
    rest, name = advance(queue, size, ms(now)), name_in(local)
    return rest, [set_queue(name, rest), set_message(name, queue.head, None)]
