"""Whether a handler's messages run now: nothing waits before them, its circuit breaker is closed, and no
operator has it paused.
"""

from __future__ import annotations

import structlog

from streams.model.operations import Pause
from streams.policy.breaker import Breaker, BreakerPolicy, BreakerState, BreakerTransition, Permit
from streams.retry.queue import Crowd
from streams.retry.unread import Unread
from streams.staging.measures import HandlerMeasures

log = structlog.get_logger(__name__)

#: What a message runs with that was let through without asking the breaker: it was closed.
UNASKED = Permit(0)


class HandlerGate:
    """Of one handler in one lane.

    Attributes:
        clear: nothing waits for the handler, its breaker is closed, and it is paused nowhere: messages go
            straight through.
        succeeded: how many of those did since the breaker was last updated.
        away: the breaker has opened, and no attempt has succeeded since: the outside is to blame.
        last_success: when an attempt has succeeded last, epoch seconds; 0: none since the lane opened.
        queues: the handler's queues by their local keys.
        running: those of which the head is under way.
        unroutable: those of which the head is of a topic that the handler no longer takes.
        pauses: the partitions, as they stand in local keys, in which new messages of the handler wait.
        held: those of them in which nothing of it is tried.
        under_way: attempts that take their time.
        unread: queues of which the head waits for its schema.
        not_yet: queues of which the head is for another version of the application, with why; known from
            when the lane has tried them.
        crowds: its queues that are long, by their local keys.
        measures: where its attempts are counted; None where nothing is measured.
    """

    __slots__ = (
        "away",
        "breaker",
        "clear",
        "crowds",
        "handler",
        "held",
        "last_success",
        "measures",
        "not_yet",
        "pauses",
        "queues",
        "running",
        "succeeded",
        "under_way",
        "unread",
        "unroutable",
    )

    def __init__(self, handler: str, policy: BreakerPolicy, measures: HandlerMeasures | None = None) -> None:
        self.handler = handler
        self.measures = measures
        self.breaker = Breaker(policy, self._changed)
        self.clear = True
        self.succeeded = 0
        self.away = False
        self.last_success = 0.0
        self.queues: set[bytes] = set()
        self.running: set[bytes] = set()
        self.unroutable: set[bytes] = set()
        self.pauses: dict[bytes, Pause] = {}
        self.held: set[bytes] = set()
        self.under_way = 0
        self.unread = Unread()
        self.crowds: dict[bytes, Crowd] = {}
        self.not_yet: dict[bytes, str] = {}

    def handled(self, permit: Permit, seconds: float, now: float) -> None:
        """Count an attempt that has succeeded, and how long it took. The breaker hears of an attempt without
        a permit when it is updated next.
        """
        if self.measures is not None:
            self.measures.succeeded.add(seconds)
        if permit == UNASKED:
            self.succeeded += 1
        else:
            self.record(permit, ok=True, now=now)
            self.last_success = now

    def record(self, permit: Permit, *, ok: bool, now: float) -> None:
        """Count how an attempt has ended: `ok` unless it may well be the outside's fault."""
        self.update_breaker(now)
        if ok:
            self.away = False
        if permit != UNASKED:
            self.breaker.record(permit, ok=ok, now=now)
        elif self.breaker.state is BreakerState.CLOSED:  # else it says nothing of the state that came after
            self.breaker.record(self.breaker.acquire(now) or permit, ok=ok, now=now)

    def give_back(self, permit: Permit, *, now: float) -> None:
        """An attempt has ended that says nothing of the outside: it counts for nothing."""
        self.update_breaker(now)
        if permit != UNASKED:
            self.breaker.give_back(permit)

    def update_breaker(self, now: float) -> None:
        """Pass on to the breaker what time it is and how many have succeeded."""
        count, self.succeeded = self.succeeded, 0
        if count:
            self.last_success = now
        self.breaker.succeeded(count, now=now)

    def failed(self, kind: str, decision: str) -> None:
        """Count a failed attempt, for the metrics alone."""
        if self.measures is not None:
            self.measures.failures[kind, decision] += 1

    def retried(self, tier: int) -> None:
        """Count a retry, for the metrics alone; tier 0 is at once, in the lane."""
        if self.measures is not None:
            self.measures.retries[tier] += 1

    def add(self, queue: bytes) -> None:
        """A queue has begun."""
        self.queues.add(queue)
        self.clear = False

    def remove(self, queue: bytes) -> None:
        """A queue has ended."""
        self.queues.discard(queue)
        self.crowds.pop(queue, None)
        self.not_yet.pop(queue, None)
        self.unread.forget(queue)
        self._clear()

    def set_pause(self, partition: bytes, pause: Pause | None) -> None:
        """What the handler does in a partition, as that stands in local keys; None: it runs."""
        self.pauses.pop(partition, None)
        self.held.discard(partition)
        if pause is not None:
            self.pauses[partition] = pause
            if pause.holds:
                self.held.add(partition)
        self._clear()

    def _clear(self) -> None:
        self.clear = not self.queues and self.breaker.state is BreakerState.CLOSED and not self.pauses

    def _changed(self, transition: BreakerTransition) -> None:
        self._clear()
        if transition.before is BreakerState.CLOSED:
            self.away = True
        log.warning(
            "breaker_changed",
            handler=self.handler,
            before=str(transition.before),
            after=str(transition.after),
            calls=transition.calls,
            failures=transition.failures,
        )
