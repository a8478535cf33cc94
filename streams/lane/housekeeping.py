"""What a lane does beside the messages that come in: chores, each a little at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from typing import Protocol

import structlog

from streams.lane.dispatch import Dispatch
from streams.retry.due import DueHeads
from streams.retry.queue import Reason
from streams.retry.waiting import Waiting
from streams.staging.inbox import Inbox

log = structlog.get_logger(__name__)

#: Between looks at what has expired, in seconds.
HOUSEKEEPING = 600.0


class Chore(Protocol):
    """Something that is to be done again and again."""

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Do a little of it at `now`, epoch seconds. `room` says for how many messages there is room. True
        when something was staged.
        """


class Housekeeping:
    """All chores of a lane, in their order."""

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._chores = chores

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Do a little of each. True when something was staged."""
        staged = False
        for chore in self._chores:
            if chore.step(now, room):
                staged = True
        return staged


class DueChore:
    """Heads of queues that are due run again."""

    def __init__(self, due: DueHeads, dispatch: Dispatch) -> None:
        self._due = due
        self._dispatch = dispatch

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Run what is due, and what follows it, `room` messages at most."""
        with closing(self._due.due(room(), now)) as heads:
            for arrival in heads:
                self._dispatch.dispatch(arrival, now)
        return self._due.started > 0


#: Queues that are looked at for dead letters that hold others: the lane runs nothing else meanwhile.
MOST_LOOKED_AT = 10_000


def log_holds(waiting: Waiting) -> None:
    """Write an error for each handler whose messages wait behind dead letters."""
    for name, gate in waiting.gates.items():
        if not waiting.staging.app.handlers[name].retry.hold_while_dead:
            continue
        queues = [waiting.queues.get(local) for local in islice(gate.queues, MOST_LOOKED_AT)]
        dead = [queue for queue in queues if queue is not None and queue.reason is Reason.DEAD]
        if dead:
            log.error(
                "dead_letter_holds",
                handler=name,
                letters=len(dead),
                held=sum(queue.length - 1 for queue in dead),
                action="replay or discard them: steadfaust dlq",
            )


class Throttled:
    """Chores that stage nothing and need no haste, such as dropping what has expired."""

    def __init__(self, *chores: Callable[[float], None], every: float = HOUSEKEEPING) -> None:
        """Each is called with the time, in epoch seconds, when the lane has opened and `every` seconds."""
        self._chores = chores
        self._every = every
        self._next = 0.0

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Do all of them when it is time."""
        del room  # they need none
        if now >= self._next:
            self._next = now + self._every
            for chore in self._chores:
                chore(now)
        return False


def inbox_expiry(inbox: Inbox, lane: int) -> Callable[[float], None]:
    """Drops what is too old in a lane's inbox."""

    def expire(now: float) -> None:
        if expired := inbox.expire(now):
            log.info("inbox_expired", lane=lane, buckets=expired)

    return expire
