"""Periodic tasks of a lane, called chores in code. Each does a small part at a time."""

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

#: Seconds between two runs of tasks that are not urgent.
HOUSEKEEPING = 600.0


class Chore(Protocol):
    """A periodic task of a lane."""

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Do a small part of the task at `now`, in epoch seconds. `room` returns how many more messages the
        lane can take. True if something was staged.
        """


def step_all(chores: Sequence[Chore], now: float, room: Callable[[], int]) -> bool:
    """Call each task once, in the given order. True if something was staged."""
    staged = [chore.step(now, room) for chore in chores]
    return any(staged)


#: Maximum number of queues of a handler that `check_holds` checks. The lane runs nothing else meanwhile.
MOST_LOOKED_AT = 10_000


def check_holds(waiting: Waiting, now: float) -> bool:
    """Log an error for each handler with messages that wait behind dead letters. If a dead letter's row was
    lost with a deleted changelog, write it again, because only an operation on it releases those messages.
    True if one was written.
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
    """Write the dead letter at the head of a queue again if its row is gone. True if it was written."""
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
    """Periodic tasks that are not urgent, such as removing expired ids."""

    def __init__(self, *chores: Callable[[float], bool | None]) -> None:
        """Each task is called when the lane has opened and then every HOUSEKEEPING seconds, with the time in
        epoch seconds. It returns True if it has staged something.
        """
        self._chores = chores
        self._next = 0.0

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Run all tasks if it is time."""
        del room  # these tasks take no messages
        if self._next - HOUSEKEEPING <= now < self._next:  # an earlier time means the clock was set back
            return False
        self._next = now + HOUSEKEEPING
        staged = [chore(now) for chore in self._chores]
        return any(staged)


def expire_inbox(inbox: Inbox, lane: int, now: float) -> None:
    """Remove ids older than the inbox retention from a lane's inbox."""
    if expired := inbox.expire(now):
        log.info("inbox_expired", lane=lane, buckets=expired)
