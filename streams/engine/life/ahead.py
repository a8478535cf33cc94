"""A periodic task that corrects times which a worker with a fast clock stored too late (docs/adr/0077).

A retry, a timer that was set for a duration and the end of a wait are stored as times. A worker with a clock
an hour ahead stores them an hour late, and nothing shows that until then. So a lane compares the stored times
with its policies when it opens, and again each time its own clock is set back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

import structlog
from msgspec.structs import replace

from streams.engine.staging.keys import name_in, split_store_key, time_key
from streams.engine.staging.timers import timer_key
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.queue import Reason, WaitingQueue, ms, set_message, set_queue, within_policy
from streams.engine.waiting.timers import Timers
from streams.engine.waiting.waiting import Waiting
from streams.engine.way.failure import NOT_YET_PAUSE
from streams.errors import RowUnreadable
from streams.model.policy.retry import longest_wait

log = structlog.get_logger(__name__)

#: Seconds by which clocks of machines may differ before a stored time is corrected.
SLACK = 1.0
#: Maximum number of queues, and of timers, that one step checks. The lane runs nothing else meanwhile.
MOST_LOOKED_AT = 200


class TimesAhead:
    """Compares the stored times of one lane with its policies. Each opening of a lane makes a new one."""

    def __init__(self, waiting: Waiting, timers: Timers, in_flight: Collection[bytes]) -> None:
        """`in_flight` are the keys with a running handler."""
        self._waiting = waiting
        self._staging = waiting.staging
        self._timers = timers
        self._in_flight = in_flight
        self._latest = 0.0
        #: Queues left to check, by their local keys, and the key at which to continue in the index of timers;
        #: empty if nothing is left.
        self._queues: deque[tuple[HandlerGate, bytes]] = deque()
        self._begin = b""

    def step(self, now: float, room: Callable[[], int]) -> bool:
        """Check some of the remaining times, at `now` in epoch seconds. True if one was corrected."""
        del room  # corrections take no messages
        if not self._latest or now < self._latest - SLACK:
            self._start(now)
        self._latest = max(self._latest, now)
        if not self._queues and not self._begin:
            return False
        options, order = self._staging.app.lane_options, self._staging.order
        if order.is_over(options.max_backlog, options.max_backlog_bytes):
            return False
        found = self._look_at_queues(now) + self._look_at_timers(now)
        if found:
            log.warning(
                "times_ahead",
                changed=found,
                action="a clock was ahead when these were written: let a time service keep the clocks",
            )
        return found > 0

    def _start(self, now: float) -> None:
        self._latest = now
        self._begin = time_key(ms(now + SLACK))
        self._queues.clear()
        for gate in self._waiting.gates.values():
            gate.last_success = min(gate.last_success, now)
            self._queues.extend((gate, local) for local in gate.queues)

    def _look_at_queues(self, now: float) -> int:
        changed = 0
        for _ in range(min(MOST_LOOKED_AT, len(self._queues))):
            gate, local = self._queues.popleft()
            queue = self._waiting.queues.get(local)
            if queue is None:
                continue
            if local in gate.running:
                self._queues.append((gate, local))
            else:
                changed += self._bring_back(gate, local, queue, now)
        return changed

    def _bring_back(self, gate: HandlerGate, local: bytes, queue: WaitingQueue, now: float) -> bool:
        """Rewrite a queue with times that are too late, and the time since when its head waits."""
        longest = self._longest(gate.handler)
        if within_policy(queue, ms(now + SLACK), longest) == queue:
            return False
        partition, name = split_store_key(local)
        changes = [set_queue(name, within_policy(queue, ms(now), longest))]
        try:
            head = self._waiting.queues.head(local, queue)
        except RowUnreadable:
            gate.unroutable.add(local)
        else:
            if head.since_ms > ms(now):
                changes.append(set_message(name, queue.head, replace(head, since_ms=ms(now))))
        self._staging.append(partition, changes, (), timer_key(name_in(local)))
        return True

    def _longest(self, handler: str) -> Callable[[Reason], int]:
        """Returns a function from a reason to the longest wait of a queue's head, in milliseconds."""
        app = self._staging.app
        retry = max(longest_wait(app.handlers[handler].retry), NOT_YET_PAUSE)
        waits = {Reason.RETRY: ms(retry), Reason.SCHEMA: ms(app.lane_options.schema_patience)}
        return lambda reason: waits.get(reason, 0)

    def _look_at_timers(self, now: float) -> int:
        if not self._begin:
            return 0
        changed, self._begin = self._timers.bring_back(self._begin, MOST_LOOKED_AT, now, SLACK)
        return changed
