"""Changes to the queues of a lane, staged: a message begins one, stands behind others, is put off, leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import structlog

from streams.errors import DataError, QueueFull, RowUnreadable, TooLarge
from streams.model.application import BoundHandler, LaneOptions
from streams.model.envelope import RECORD_OVERHEAD
from streams.retry.crowds import Crowds
from streams.retry.gate import HandlerGate
from streams.retry.giving_up import GivingUp
from streams.retry.queue import (
    Reason,
    advance,
    append,
    begin,
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
from streams.staging.inbox import Inbox
from streams.staging.keys import name_in
from streams.staging.outcomes import OutcomeWriter

log = structlog.get_logger(__name__)

#: An ordering key longer than this is hashed: it is part of the keys of rows.
MAX_ORDER_BYTES = 64


class WaitingLine:
    """Applies what `retries` has decided. A message that cannot wait is given up. Times are epoch seconds."""

    def __init__(
        self,
        options: LaneOptions,
        queues: Queues,
        gates: Mapping[str, HandlerGate],
        writer: OutcomeWriter,
        giving_up: GivingUp,
        crowds: Crowds,
    ) -> None:
        self._options = options
        self.crowds = crowds
        self._limit = options.max_message_bytes - RECORD_OVERHEAD
        self._queues = queues
        self._gates = gates
        self._writer = writer
        self._giving_up = giving_up

    def begin(
        self,
        attempt: Attempt,
        reason: Reason,
        due: float,
        now: float,
        *,
        error: Exception | None = None,
        tried: float = 0.0,
    ) -> bool:
        """Let a message wait until it is due, first in a queue of its own. False: it is given up."""
        local = queue_of_order(attempt.arrival, attempt.handler)
        gate = self._gates[attempt.handler.name]
        if local in gate.queues:  # only where `order_by` does not say the same twice
            self.stand_behind(attempt, local, now)
            return True
        changes = _first(local, attempt, reason, due, now, tried=tried)
        if not self._put_or_give_up(attempt, changes, error, now):
            return False
        gate.add(local)
        return True

    def stand_behind(self, attempt: Attempt, local: bytes, now: float) -> None:
        """Let a message wait for its turn, behind an earlier one of its ordering key; a replay, before
        all that are none.
        """
        arrival, handler, queue = attempt.arrival, attempt.handler, self._queues.get(local)
        if queue is None:
            what = f"the queue {name_in(local)!r}"
            error: DataError = RowUnreadable(f"it is to wait in {what}, which cannot be read")
            self._giving_up.dead_letter(attempt, error, now)
            return
        letter = is_replay(arrival.record)
        message = message_of(arrival.record, ms(now), letter=letter)
        if letter:  # its place is before them, as if its ordering key had been known from the start
            longer = replayed(queue, message.size, ms(now))
        else:
            longer = append(queue, message.size)
        number = longer.newest_replay if letter else queue.next
        if longer.length > self._options.max_waiting or longer.bytes > self._options.max_waiting_bytes:
            full = QueueFull(
                f"{queue.length} messages ({queue.bytes} bytes) of its ordering key wait for {handler.name}"
                " already: it cannot wait behind them"
            )
            self._giving_up.give_up(attempt, full, now)
        else:
            changes = with_message(local, longer, number, message)
            if not self._put_or_give_up(attempt, changes, None, now):
                return
            gate = self._gates[handler.name]
            self.crowds.note(gate, local, longer, now)
            if letter:
                gate.unroutable.discard(local)  # its head is another one now

    def _put_or_give_up(
        self, attempt: Attempt, changes: list[Change], error: Exception | None, now: float
    ) -> bool:
        """Stage that a message waits; False: its rows are too large, and it is given up."""
        if (too_large := self.too_large(changes)) is not None:
            self._giving_up.give_up(attempt, error or too_large, now)
            return False
        if attempt.inbox_key is not None:
            changes.append(Inbox.entry(attempt.inbox_key, int(now * 1000), b"waits"))
        self._writer.put(attempt.arrival.entry, changes)
        if not attempt.arrival.queue:  # else it has been counted
            self._writer.counters.waiting += 1
        return True

    def too_large(self, changes: Sequence[Change]) -> TooLarge | None:
        """Why a message cannot wait in these rows; None: it can."""
        largest = max(len(change.key) + len(change.value or b"") for change in changes)
        if largest <= self._limit:
            return None
        return TooLarge(f"it is to wait, in a row of {largest} bytes; the limit is {self._limit}")

    def wait(self, attempt: Attempt, reason: Reason, due: float, now: float, error: Exception) -> bool:
        """Let a message that was tried now wait until it is due. False: it is given up."""
        if attempt.arrival.queue:
            self.put_off(attempt, reason, due, tried=now)
            return True
        return self.begin(attempt, reason, due, now, error=error, tried=now)

    def put_off(self, attempt: Attempt, reason: Reason, due: float, *, tried: float = 0.0) -> None:
        """Let the head of a queue wait on."""
        local = attempt.arrival.queue
        queue = self._queues.get(local)
        assert queue is not None
        later = put_off(queue, reason, due_ms=ms(due), attempts=attempt.attempts, tried_ms=ms(tried))
        self._writer.put(attempt.arrival.entry, [set_queue(name_in(local), later)])
        self._gates[attempt.handler.name].running.discard(local)

    def leave(self, attempt: Attempt, now: float) -> None:
        """Take the head of a queue away."""
        arrival, gate = attempt.arrival, self._gates[attempt.handler.name]
        local = arrival.queue
        queue = self._queues.get(local)
        assert queue is not None
        rest = advance(queue, message_of(arrival.record, 0).size, ms(now))
        self._writer.put(arrival.entry, without_head(local, queue, rest))
        gate.running.discard(local)
        gate.not_yet.pop(local, None)
        if rest is None:
            gate.remove(local)
        elif local in gate.crowds:
            self.crowds.note(gate, local, rest, now)

    def held(self, attempt: Attempt, now: float) -> tuple[bytes, list[Change]]:
        """The queue that is to wait behind a dead letter, by its local key, and the changes that let it wait;
        nothing where the message cannot be its head.
        """
        arrival, handler = attempt.arrival, attempt.handler
        if arrival.queue:
            queue = self._queues.get(arrival.queue)
            assert queue is not None
            dead = put_off(queue, Reason.DEAD, due_ms=0, attempts=attempt.attempts)
            message = message_of(arrival.record, ms(now), letter=True)
            return arrival.queue, with_message(arrival.queue, dead, dead.head, message)
        local = queue_of_order(arrival, handler)
        changes = _first(local, attempt, Reason.DEAD, 0.0, now, letter=True)
        if local in self._gates[handler.name].queues or self.too_large(changes):  # the former: see `begin`
            return b"", []
        return local, changes

    def hold(self, attempt: Attempt, local: bytes, changes: list[Change]) -> None:
        """Let a queue wait behind a dead letter."""
        gate = self._gates[attempt.handler.name]
        self._writer.put(attempt.arrival.entry, changes)
        gate.add(local)
        gate.running.discard(local)


def queue_of_key(arrival: Arrival, handler: BoundHandler) -> bytes:
    """The local key of the queue of what has no ordering key but its message key, or none yet."""
    return arrival.entry.prefix + queue_name(handler.name_bytes, arrival.record.key or b"")


def queue_of_order(arrival: Arrival, handler: BoundHandler) -> bytes:
    """The local key of the queue that a message would wait in."""
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
    """The changes by which a message waits, first in a queue of its own."""
    message = message_of(attempt.arrival.record, ms(now), letter=letter)
    queue = begin(reason, due_ms=ms(due), attempts=attempt.attempts, size=message.size, tried_ms=ms(tried))
    return with_message(local, queue, queue.first, message)
