"""The gate of a handler: its messages run if none waits before them, its circuit breaker is closed, and no
operator has paused it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import structlog

from streams.engine.staging.arrival import Arrival
from streams.engine.staging.entry import Entry
from streams.engine.staging.measures import HandlerMeasures
from streams.engine.waiting.dead_letters.row import capped
from streams.engine.waiting.queue import MAX_ERROR_BYTES, WaitingQueue
from streams.engine.waiting.unread import Unread
from streams.errors import BlobsUnavailable, text_of
from streams.model.operations import HandlerPause, PauseState
from streams.model.policy.breaker import (
    NO_PERMIT,
    Breaker,
    BreakerPolicy,
    BreakerState,
    BreakerTransition,
    Permit,
)

log: Final = structlog.get_logger(__name__)

#: Number of failed attempts that are remembered.
MOST_FAILURES: Final = 10


class Failure(NamedTuple):
    """A failed attempt: its time in epoch seconds, the message's key, the error, and the decision."""

    at: float
    key: bytes
    error: str
    decision: str


#: Topic, partition and offset of a record.
Place = tuple[str, int, int]


class Unavailable(NamedTuple):
    """Why a payload cannot be read or written: the cause, shared by many messages, and this one's error."""

    cause: str
    error: str


class LongQueue(NamedTuple):
    """A long queue.

    Attributes:
        handler, key: the handler and the key of the messages that wait.
        queue: its current state.
        most: its bound, in bytes.
        since: when the lane stopped reading its partitions, in epoch seconds; 0: it reads.
    """

    handler: str
    key: bytes
    queue: WaitingQueue
    most: int
    since: float


class HandlerGate:
    """The gate of one handler in one lane.

    Attributes:
        clear: whether nothing waits for the handler, its breaker is closed, and it is paused nowhere, so that
            messages need no further check.
        succeeded: successful attempts without a permit since the breaker was last updated.
        away: the breaker has opened, and no attempt has succeeded since: an outside system is to blame.
        last_success: time of the last successful attempt, in epoch seconds; 0: none since the lane opened.
        queues: local keys of the handler's queues.
        running: queues with a head in flight.
        unroutable: queues with a head that cannot be read, or is of a topic that the handler does not take.
        pauses: pauses by the prefix of their partition in local keys; new messages there wait.
        shut: partitions of these in which the handler is not called at all.
        drains: partitions of these that drain, each with the entry of the operation that began it; None: that
            was committed before the lane opened.
        under_way: number of attempts in the background.
        unread: queues with a head that waits for its schema.
        not_yet: queues with a head for another version of the application, and why. A queue is missing until
            the lane has tried its head.
        unavailable: messages with a payload that cannot be read or written now, by their places in topics.
        long_queues: the handler's long queues, by their local keys.
        measures: where its attempts are counted; None: nothing is measured.
        failures: its last failed attempts in this lane, the newest last.
    """

    __slots__ = (
        "away",
        "breaker",
        "clear",
        "drains",
        "failures",
        "handler",
        "last_success",
        "long_queues",
        "measures",
        "not_yet",
        "pauses",
        "queues",
        "running",
        "shut",
        "succeeded",
        "unavailable",
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
        self.pauses: dict[bytes, HandlerPause] = {}
        self.shut: set[bytes] = set()
        self.drains: dict[bytes, Entry | None] = {}
        self.under_way = 0
        self.unread = Unread()
        self.long_queues: dict[bytes, LongQueue] = {}
        self.not_yet: dict[bytes, str] = {}
        self.unavailable: dict[Place, Unavailable] = {}
        self.failures: deque[Failure] = deque(maxlen=MOST_FAILURES)

    def handled(self, permit: Permit, seconds: float, now: float) -> None:
        """Count a successful attempt, and how long it took. The breaker counts an attempt without a permit at
        its next update.
        """
        if self.measures is not None:
            self.measures.succeeded.add(seconds)
        if permit == NO_PERMIT:
            self.succeeded += 1
        else:
            self.record(permit, ok=True, now=now)
            self.last_success = now

    def record(self, permit: Permit, *, ok: bool, now: float) -> None:
        """Count the result of an attempt: `ok` unless an outside system may be to blame for an error."""
        self.update_breaker(now)
        if ok:
            self.away = False
        if permit != NO_PERMIT:
            self.breaker.record(permit, ok=ok, now=now)
        elif self.breaker.state is BreakerState.CLOSED:  # else the attempt began before the present state
            self.breaker.record(self.breaker.acquire(now) or permit, ok=ok, now=now)

    def give_back(self, permit: Permit, *, now: float) -> None:
        """Return the permit of an attempt that says nothing about outside systems. It is not counted."""
        self.update_breaker(now)
        if permit != NO_PERMIT:
            self.breaker.give_back(permit)

    def update_breaker(self, now: float) -> None:
        """Pass the time and the number of successful attempts on to the breaker."""
        count, self.succeeded = self.succeeded, 0
        if count:
            self.last_success = now
        self.breaker.succeeded(count, now=now)

    def failed(
        self, arrival: Arrival, error: BaseException, kind: str, decision: str, delay: float, now: float
    ) -> None:
        """Log and count a failed attempt, for people and metrics. `decision` is what follows after `delay`
        seconds.
        """
        text = f"{type(error).__name__}: {text_of(error)}"
        key = arrival.key
        self.failures.append(Failure(now, key, capped(text, MAX_ERROR_BYTES), decision))
        if self.measures is not None:
            self.measures.failures[kind, decision] += 1
        if isinstance(error, BlobsUnavailable):
            self.unavailable[arrival.place] = Unavailable(error.cause, str(error))
        else:
            self.unavailable.pop(arrival.place, None)
        span = arrival.attempt.span
        if span is not None:
            span.failed(error)
            span.attributes["steadfaust.failure"] = kind
            span.attributes["steadfaust.decision"] = decision
        log.warning(
            "handler_failed",
            handler=self.handler,
            error=text,
            kind=kind,
            attempt=arrival.attempt.tries,
            decision=decision,
            delay=delay,
            topic=arrival.record.topic,
            partition=arrival.record.partition,
            offset=arrival.record.offset,
            **arrival.log_ids(),
        )

    def retried(self, tier: int) -> None:
        """Count a retry for metrics. Tier 0 is an immediate retry in the lane."""
        if self.measures is not None:
            self.measures.retries[tier] += 1

    def add(self, queue: bytes) -> None:
        """Record that a queue has begun."""
        self.queues.add(queue)
        self.clear = False

    def remove(self, queue: bytes) -> None:
        """Record that a queue has ended."""
        self.queues.discard(queue)
        self.long_queues.pop(queue, None)
        self.not_yet.pop(queue, None)
        self.unread.forget(queue)
        self._clear()

    def set_pause(self, partition: bytes, pause: HandlerPause | None, asked: Entry | None = None) -> None:
        """Pause the handler in a partition, given by its prefix in local keys; None: it runs. `asked` is the
        entry of the operation, if that is not committed yet.
        """
        self.pauses.pop(partition, None)
        self.shut.discard(partition)
        self.drains.pop(partition, None)
        if pause is not None:
            self.pauses[partition] = pause
            if pause.holds:
                self.shut.add(partition)
            if pause.state is PauseState.DRAINING:
                self.drains[partition] = asked
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
