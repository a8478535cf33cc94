"""Whether a handler's messages run now: nothing waits before them, its circuit breaker is closed, and no
operator has it paused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

import structlog

from streams.errors import PermanentError, UnknownSchema
from streams.model.application import BoundRoute
from streams.model.operations import HandlerPause, PauseState
from streams.policy.breaker import Breaker, BreakerPolicy, BreakerState, BreakerTransition, Permit
from streams.retry.queue import LongQueue
from streams.staging.entry import Entry
from streams.staging.measures import HandlerMeasures

log = structlog.get_logger(__name__)

#: Between looks whether schemas have been announced, in seconds.
LOOK = 1.0
#: Schemas that one look asks for: anybody can make up fingerprints.
MOST_LOOKED_AT = 1000
#: Queues that are given out at once.
MOST_READY = 200

#: Failed attempts that are remembered.
MOST_FAILURES = 10

#: What a message runs with that was let through without asking the breaker: it was closed.
NO_PERMIT = Permit(0)


class Awaited(NamedTuple):
    """A schema that messages wait for: of how many keys, and the earliest since when, epoch seconds."""

    keys: int
    since: float


class Unread:
    """Queues of one handler in one lane that wait for a schema, by local keys; some may have ended.

    Attributes:
        used: whether there was any since the lane opened.
    """

    __slots__ = ("_looked", "_queues", "_ready", "_schemas", "_since", "used")

    def __init__(self) -> None:
        self.used = False
        self._queues: dict[bytes, tuple[str, bytes]] = {}
        #: By topic and fingerprint, in the order in which they are looked at.
        self._schemas: dict[tuple[str, bytes], dict[bytes, None]] = {}
        self._since: dict[tuple[str, bytes], float] = {}
        self._ready: dict[bytes, None] = {}
        self._looked = 0.0

    def add(self, queue: bytes, topic: str, fingerprint: bytes, since: float) -> None:
        """The head of a queue waits, since then (epoch seconds)."""
        self.used = True
        self.forget(queue)
        schema = (topic, fingerprint)
        self._queues[queue] = schema
        self._schemas.setdefault(schema, {})[queue] = None
        self._since[schema] = min(since, self._since.get(schema, since))

    def forget(self, queue: bytes) -> None:
        """The head of a queue does not wait for a schema any more."""
        self._ready.pop(queue, None)
        schema = self._queues.pop(queue, None)
        if schema is not None:
            self._schemas[schema].pop(queue)
            if not self._schemas[schema]:
                del self._schemas[schema], self._since[schema]

    def later(self, queue: bytes) -> None:
        """A queue whose schema is there is not tried now: others come before it."""
        self._ready[queue] = self._ready.pop(queue)

    def ready(self, routes: Mapping[str, BoundRoute], now: float) -> list[bytes]:
        """Some of those whose schema has been announced since; each until it is forgotten."""
        if self._schemas and abs(now - self._looked) >= LOOK:
            self._looked = now
            for schema in list(islice(self._schemas, MOST_LOOKED_AT)):
                queues = self._schemas.pop(schema)
                if not _is_known(routes, *schema):
                    self._schemas[schema] = queues  # looked at after the others
                    continue
                del self._since[schema]
                for queue in queues:
                    del self._queues[queue]
                self._ready.update(queues)
        return list(islice(self._ready, MOST_READY)) if self._ready else []

    def awaited(self) -> dict[str, Awaited]:
        """The schemas that messages wait for, by fingerprint."""
        found: dict[str, Awaited] = {}
        for (topic, fingerprint), queues in self._schemas.items():
            name, since = fingerprint.decode(), self._since[topic, fingerprint]
            before = found.get(name, Awaited(0, since))
            found[name] = Awaited(before.keys + len(queues), min(before.since, since))
        return found


def _is_known(routes: Mapping[str, BoundRoute], topic: str, fingerprint: bytes) -> bool:
    """Whether a message would be read, or turn out to be none."""
    if topic not in routes:  # it waits for another version of the application
        return False
    try:
        routes[topic].codec.require(fingerprint)
    except UnknownSchema:
        return False
    except PermanentError:
        return True
    return True


class Failure(NamedTuple):
    """A failed attempt: when, in epoch seconds; of which key; why; and what followed."""

    at: float
    key: bytes
    error: str
    decision: str


class HandlerGate:
    """The gate of one handler in one lane.

    Attributes:
        clear: nothing waits for the handler, its breaker is closed, and it is paused nowhere: messages go
            straight through.
        succeeded: how many of those did since the breaker was last updated.
        away: the breaker has opened, and no attempt has succeeded since: the outside is to blame.
        last_success: when an attempt has succeeded last, epoch seconds; 0: none since the lane opened.
        queues: the handler's queues by their local keys.
        running: those of which the head is under way.
        unroutable: those of which the head is of a topic that the handler no longer takes.
        pauses: the partitions, by their prefix in local keys, in which new messages of the handler wait.
        shut: those of them in which nothing of it is tried.
        drains: those of them that drain, each with the entry of the operation that began it; None: that
            was committed before the lane opened.
        under_way: attempts that take their time.
        unread: queues of which the head waits for its schema.
        not_yet: queues of which the head is for another version of the application, with why; known from
            when the lane has tried them.
        long_queues: its queues that are long, by their local keys.
        measures: where its attempts are counted; None where nothing is measured.
        failures: its last failed attempts here, the newest last.
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
        self.failures: deque[Failure] = deque(maxlen=MOST_FAILURES)

    def handled(self, permit: Permit, seconds: float, now: float) -> None:
        """Count an attempt that has succeeded, and how long it took. The breaker counts an attempt without
        a permit when it is updated next.
        """
        if self.measures is not None:
            self.measures.succeeded.add(seconds)
        if permit == NO_PERMIT:
            self.succeeded += 1
        else:
            self.record(permit, ok=True, now=now)
            self.last_success = now

    def record(self, permit: Permit, *, ok: bool, now: float) -> None:
        """Count how an attempt has ended: `ok` unless it may well be the outside's fault."""
        self.update_breaker(now)
        if ok:
            self.away = False
        if permit != NO_PERMIT:
            self.breaker.record(permit, ok=ok, now=now)
        elif self.breaker.state is BreakerState.CLOSED:  # else it says nothing of the state that came after
            self.breaker.record(self.breaker.acquire(now) or permit, ok=ok, now=now)

    def give_back(self, permit: Permit, *, now: float) -> None:
        """An attempt has ended that says nothing of the outside: it counts for nothing."""
        self.update_breaker(now)
        if permit != NO_PERMIT:
            self.breaker.give_back(permit)

    def update_breaker(self, now: float) -> None:
        """Pass on to the breaker what time it is and how many have succeeded."""
        count, self.succeeded = self.succeeded, 0
        if count:
            self.last_success = now
        self.breaker.succeeded(count, now=now)

    def failed(self, kind: str, failure: Failure) -> None:
        """Remember and count a failed attempt, for people and metrics."""
        self.failures.append(failure)
        decision = failure.decision
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
        self.long_queues.pop(queue, None)
        self.not_yet.pop(queue, None)
        self.unread.forget(queue)
        self._clear()

    def set_pause(self, partition: bytes, pause: HandlerPause | None, asked: Entry | None = None) -> None:
        """Pause the handler in a partition, by its prefix in local keys; None: it runs. `asked` is the entry
        of the operation, if that is not committed yet.
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
