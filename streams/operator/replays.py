"""Dead letters and the queues of their handlers: a replay takes its place there, a hold ends."""

from __future__ import annotations

from itertools import islice

import structlog

from streams.dead_letters.row import Letter, LetterState
from streams.errors import RowUnreadable
from streams.model.application import BoundHandler
from streams.retry.queue import (
    Queue,
    Reason,
    handler_of,
    message_of,
    released,
    replayed,
    set_message,
    set_queue,
    woken,
)
from streams.retry.queues import with_message
from streams.retry.waiting import Waiting, queue_of_order
from streams.staging.arrival import Arrival
from streams.staging.entry import Entry
from streams.staging.keys import name_in

log = structlog.get_logger(__name__)

#: Queues that are looked at for dead letters that hold others: the lane stands still meanwhile.
MOST_LOOKED_AT = 10_000


class Replays:
    """Stages what becomes of a lane's queues when an operator has decided about a letter."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._gates = waiting.gates
        self._queues = waiting.queues
        self._staging = waiting.staging
        self._app = waiting.staging.app

    def replay(self, arrival: Arrival, handler: BoundHandler, letter: Letter, now: float) -> str:
        """Let a handler see a letter's message again, before what waits behind it. Returns why not; empty
        when it is staged.
        """
        now_ms = int(now * 1000)
        message = message_of(letter.record, now_ms, letter=True)
        if letter.queue:
            local = arrival.entry.prefix + letter.queue
        else:
            local = queue_of_order(arrival, handler)
        queue = self._queues.get(local)
        if queue is None and local in self._gates[handler.name].queues:
            return "what waits of its ordering key cannot be read: see row_unreadable in the log"
        number = None if queue is None or not letter.queue else self._place(local, queue, letter)
        if queue is not None and number is not None:
            grown = message.size - self._queues.message(local, number).size
            after = woken(queue, number, grown, now_ms)
        else:
            after = replayed(queue, message.size, now_ms)
            most, most_bytes = self._app.lane_options.max_waiting, self._app.lane_options.max_waiting_bytes
            if queue is not None and (after.length > most or after.bytes > most_bytes):
                return (
                    f"{queue.length} messages ({queue.bytes} bytes) of its ordering key wait already:"
                    " try again later"
                )
            number = after.newest_replay
        changes = with_message(local, after, number, message)
        if (too_large := self._waiting.too_large(changes)) is not None:
            return str(too_large)
        self._staging.put(arrival.entry, changes)
        gate = self._gates[handler.name]
        gate.add(local)
        gate.unroutable.discard(local)  # its head is another one now
        return ""

    def release(self, entry: Entry, letter: Letter, now: float) -> None:
        """What waits behind a letter, or behind its replay, goes on without it."""
        for local, queue in self._where(entry, letter):
            number = self._place(local, queue, letter)
            if number is not None:
                self._take_out(entry, local, queue, number, now)

    def _where(self, entry: Entry, letter: Letter) -> list[tuple[bytes, Queue]]:
        """The queues in which a letter may wait: the one that it holds; of a replay, any of its handler and
        key, for what the handler orders by within the key may be known to the handler alone.
        """
        if letter.state is LetterState.REPLAYING:
            key = letter.key or b""
            return list(self._queues.of_key(entry.prefix, letter.handler.encode(), key))
        local = entry.prefix + letter.queue
        queue = self._queues.get(local) if letter.queue else None
        return [] if queue is None else [(local, queue)]

    def _take_out(self, entry: Entry, local: bytes, queue: Queue, number: int, now: float) -> None:
        """Stage that a message waits no more."""
        name, size = name_in(local), self._queues.message(local, number).size
        rest = released(queue, number, size, int(now * 1000))
        self._staging.put(entry, [set_queue(name, rest), set_message(name, number, None)])
        gate = self._gates.get(handler_of(name).decode())
        if gate is None:
            return
        gate.unroutable.discard(local)  # its head may be another one now
        if rest is None:
            gate.remove(local)
        else:
            self._waiting.await_schema(gate, local, rest)

    def _place(self, local: bytes, queue: Queue, letter: Letter) -> int | None:
        """The number of a letter's message in a queue: at its head, or among and behind replays of others."""
        for number in dict.fromkeys((queue.head, *queue.numbers)):
            try:
                message = self._queues.message(local, number)
            except RowUnreadable:
                continue
            if message.letter and (message.topic, message.offset) == (letter.topic, letter.offset):
                return number
        return None

    def log_holds(self) -> None:
        """Write an error for each handler of which messages wait behind dead letters."""
        for name, gate in self._gates.items():
            if not self._app.handlers[name].retry.hold_while_dead:
                continue
            queues = [self._queues.get(local) for local in islice(gate.queues, MOST_LOOKED_AT)]
            dead = [queue for queue in queues if queue is not None and queue.reason is Reason.DEAD]
            if dead:
                log.error(
                    "dead_letter_holds",
                    handler=name,
                    letters=len(dead),
                    held=sum(queue.length - 1 for queue in dead),
                    action="replay or discard them: steadfaust dlq",
                )
