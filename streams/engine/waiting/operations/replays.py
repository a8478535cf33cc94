"""Insert replays of dead letters into the queues of waiting messages, and remove them.

Times are epoch seconds.
"""

from __future__ import annotations

from streams.engine.staging.arrival import Arrival
from streams.engine.staging.entry import Entry
from streams.engine.staging.keys import name_in
from streams.engine.waiting.dead_letters.row import Letter, LetterState
from streams.engine.waiting.queue import (
    WaitingQueue,
    handler_of,
    message_of,
    released,
    replayed,
    set_message,
    set_queue,
    woken,
)
from streams.engine.waiting.waiting import Waiting, queues_of
from streams.errors import RowUnreadable
from streams.model.bound import BoundHandler
from streams.ports import Record


def replay(waiting: Waiting, arrival: Arrival, handler: BoundHandler, letter: Letter, now: float) -> str:
    """Stage a replay before messages that are not replays. Returns why it cannot be; empty: it is staged."""
    now_ms = int(now * 1000)
    message = message_of(letter.record, now_ms, letter=True)
    if letter.queue:
        local = arrival.entry.prefix + letter.queue
    else:
        local = queues_of(arrival, handler)[1]
    queue = waiting.queues.get(local)
    if queue is None and local in waiting.gates[handler.name].queues:
        return "the waiting messages of its ordering key cannot be read: see row_unreadable in the log"
    number = None if queue is None or not letter.queue else _place(waiting, local, queue, letter)
    if queue is not None and number is not None:
        grown = message.size - waiting.queues.message(local, number).size
        after = woken(queue, number, grown, now_ms)
    else:
        after = replayed(queue, message.size, now_ms)
        most, most_bytes = waiting.options.max_waiting, waiting.options.max_waiting_bytes
        if queue is not None and (after.length > most or after.bytes > most_bytes):
            return (
                f"{queue.length} messages ({queue.bytes} bytes) of its ordering key wait already:"
                " try again later"
            )
        number = after.newest_replay
    name = name_in(local)
    changes = [set_queue(name, after), set_message(name, number, message)]
    if (too_large := waiting.too_large(changes)) is not None:
        return str(too_large)
    waiting.staging.put(arrival.entry, changes)
    gate = waiting.gates[handler.name]
    gate.add(local)
    gate.unroutable.discard(local)  # the queue has a new head
    return ""


def release(waiting: Waiting, entry: Entry, letter: Letter, now: float) -> None:
    """Remove a dead letter, or its replay, from its queue, so that the messages behind it continue."""
    for local, queue in _where(waiting, entry, letter):
        number = _place(waiting, local, queue, letter)
        if number is not None:
            _take_out(waiting, entry, local, queue, number, now)


def _where(waiting: Waiting, entry: Entry, letter: Letter) -> list[tuple[bytes, WaitingQueue]]:
    """The queues in which a letter may wait: the one that it holds; for a replay, all of its handler and key,
    because its ordering key is not known here.
    """
    if letter.state is LetterState.REPLAYING:
        key = letter.key or b""
        return list(waiting.queues.of_key(entry.prefix, letter.handler.encode(), key))
    local = entry.prefix + letter.queue
    queue = waiting.queues.get(local) if letter.queue else None
    return [] if queue is None else [(local, queue)]


def _take_out(
    waiting: Waiting, entry: Entry, local: bytes, queue: WaitingQueue, number: int, now: float
) -> None:
    name, size = name_in(local), waiting.queues.message(local, number).size
    rest = released(queue, number, size, int(now * 1000))
    waiting.staging.put(entry, [set_queue(name, rest), set_message(name, number, None)])
    gate = waiting.gates.get(handler_of(name).decode())
    if gate is None:
        return
    gate.unroutable.discard(local)  # the queue may have a new head
    if rest is None:
        gate.remove(local)
    else:
        waiting.await_schema(gate, local, rest)


def _place(waiting: Waiting, local: bytes, queue: WaitingQueue, letter: Letter) -> int | None:
    """The number of a letter's message in a queue; None: it is not there."""
    for number in dict.fromkeys((queue.head, *queue.numbers)):
        try:
            message = waiting.queues.message(local, number)
        except RowUnreadable:
            continue
        if message.letter and _origin(message) == _origin(letter.record):
            return number
    return None


def _origin(of: Record) -> tuple[str, int, int, int]:
    """Identify a record. The timestamp is needed, because a deleted topic may have had the same offset."""
    return of.topic, of.partition, of.offset, of.timestamp
