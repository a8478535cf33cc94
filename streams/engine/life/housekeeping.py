"""Chores of a lane, each a little at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

import structlog

from streams.engine.staging.entry import Entry
from streams.engine.staging.inbox import Inbox
from streams.engine.staging.keys import name_in, split_store_key
from streams.engine.waiting.queue import Reason, WaitingQueue
from streams.engine.waiting.waiting import Waiting
from streams.errors import PermanentError, RowUnreadable

log = structlog.get_logger(__name__)

#: Between looks at what has expired, in seconds.
HOUSEKEEPING = 600.0


class Chore(Protocol):
    """Something that is to be done again and again."""

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Do a little of it at `now`, epoch seconds. `room` says for how many messages there is room. True
        when something was staged.
        """


def step_all(chores: Sequence[Chore], now: float, room: Callable[[], int]) -> bool:
    """Do a little of each chore, in their order. True when something was staged."""
    staged = [chore.step(now, room) for chore in chores]
    return any(staged)


#: Queues that are looked at for dead letters that hold others: the lane runs nothing else meanwhile.
MOST_LOOKED_AT = 10_000


def check_holds(waiting: Waiting, now: float) -> bool:
    """Log an error for each handler whose messages wait behind dead letters. A letter whose row is gone, with
    a changelog that was deleted, is written again: only an operation on it lets the others go on. True when
    one was.
    """
    written = False
    for name, gate in waiting.gates.items():
        if not waiting.staging.app.handlers[name].retry.hold_while_dead:
            continue
        looked = ((local, waiting.queues.get(local)) for local in islice(gate.queues, MOST_LOOKED_AT))
        dead = [(local, queue) for local, queue in looked if queue and queue.reason is Reason.DEAD]
        for local, queue in dead:
            written |= _keep_letter(waiting, name, local, queue, now)
        if dead:
            log.error(
                "dead_letter_holds",
                handler=name,
                letters=len(dead),
                held=sum(queue.length - 1 for _, queue in dead),
                action="replay or discard them: steadfaust dlq",
            )
    return written


def _keep_letter(waiting: Waiting, handler: str, local: bytes, queue: WaitingQueue, now: float) -> bool:
    """Write the letter that a queue waits behind again, if its row is gone. Whether it was."""
    staging, letters = waiting.staging, waiting.letters
    try:
        record = waiting.queues.message(local, queue.head)
    except RowUnreadable:
        return False  # it has been logged
    route = staging.app.routes.get(record.topic)
    home = split_store_key(local)[0]
    if route is None or not letters.lacks(record, handler, home):
        return False
    entry = Entry(home, None, 0, 0, record.key)
    error = PermanentError(
        "its dead letter was lost with rows of a changelog, and later messages wait behind it"
    )
    letters.write(entry, route, record, error, handler, now, holds=name_in(local))
    entry.done = True
    staging.order.add(entry)
    return True


class Throttled:
    """Chores that need no haste, such as dropping what has expired."""

    def __init__(self, *chores: Callable[[float], bool | None]) -> None:
        """Each is called with the time, in epoch seconds, when the lane has opened and then every
        HOUSEKEEPING seconds. It returns True when it has staged something.
        """
        self._chores = chores
        self._next = 0.0

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Do all of them when it is time."""
        del room  # they need none
        if self._next - HOUSEKEEPING <= now < self._next:  # earlier than that: the clock was set back
            return False
        self._next = now + HOUSEKEEPING
        staged = [chore(now) for chore in self._chores]
        return any(staged)


def expire_inbox(inbox: Inbox, lane: int, now: float) -> None:
    """Drop what is too old in a lane's inbox."""
    if expired := inbox.expire(now):
        log.info("inbox_expired", lane=lane, buckets=expired)
