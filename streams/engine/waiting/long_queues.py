"""Long queues of one key: warn early, and stop reading their partitions before messages are dead-lettered.

A queue is on disk, and bounded in messages and bytes. Near the bound, the lane stops reading the topics of
the queue's handler in that partition for a time: new messages wait in Kafka (docs/adr/0053-hot-keys.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from streams.engine.staging.keys import name_in, prefix_in
from streams.engine.waiting.gate import HandlerGate, LongQueue
from streams.engine.waiting.queue import WaitingQueue
from streams.model.application import Application, LaneOptions
from streams.model.policy.jumps import jump
from streams.model.row_keys import split_row_key
from streams.ports import TP

log = structlog.get_logger(__name__)

#: A queue is long if it has this many messages, or this part of its bound.
LONG, LONG_PART = 500, 0.1
#: Parts of the bound: from NEAR on the lane stops reading the partition, below CLEAR it reads again. Messages
#: that the lane has already taken fit above NEAR.
NEAR, CLEAR = 0.5, 0.25


class LongQueues:
    """Tracks the long queues of one lane."""

    def __init__(self, app: Application, gates: Mapping[str, HandlerGate]) -> None:
        self._options: LaneOptions = app.lane_options
        self._gates = gates
        self._looked = 0.0
        self._topics: dict[str, list[str]] = {
            name: [topic for topic, route in app.routes.items() if handler in route.handlers]
            for name, handler in app.handlers.items()
        }

    def note(self, gate: HandlerGate, local: bytes, queue: WaitingQueue | None, now: float) -> None:
        """Record a queue's length; None: it has ended. `local` is its local key, `now` in epoch seconds."""
        self._follow_clock(now)
        before = gate.long_queues.get(local)
        if before is None and (queue is None or not self._is_long(queue)):
            return
        if queue is None or not self._is_long(queue):
            del gate.long_queues[local]
            return
        part, since = self._part(queue), 0.0 if before is None else before.since
        if part >= NEAR:
            since = since or now
        elif part < CLEAR:
            since = 0.0
        key, _ = split_row_key(name_in(local).partition(b"\0")[2])
        gate.long_queues[local] = LongQueue(gate.handler, key, queue, self._options.max_waiting_bytes, since)
        if before is None:
            log.warning(
                "queue_long",
                handler=gate.handler,
                key=key.decode("utf-8", "backslashreplace"),
                waiting=queue.length,
                bytes=queue.bytes,
                limit=self._options.max_waiting_bytes,
                action="its first message fails or waits: handler_failed says why; others wait behind it",
            )

    def held_back(self, now: float) -> frozenset[TP]:
        """The partitions that the lane must not read at `now`, in epoch seconds."""
        self._follow_clock(now)
        return frozenset(
            TP(topic, int.from_bytes(prefix_in(local), "big"))
            for gate in self._gates.values()
            for local, long in gate.long_queues.items()
            if long.since and now < long.since + self._options.hold_back
            for topic in self._topics[gate.handler]
        )

    def _follow_clock(self, now: float) -> None:
        """Shift the times after the clock was set. Otherwise the lane could read again too early, and
        messages would be dead-lettered that only need to wait.
        """
        set_by, self._looked = jump(self._looked, now), now
        for gate in self._gates.values() if set_by else ():
            for local, long in gate.long_queues.items():
                if long.since:
                    gate.long_queues[local] = long._replace(since=long.since + set_by)

    def _is_long(self, queue: WaitingQueue) -> bool:
        return queue.length >= LONG or self._part(queue) >= LONG_PART

    def _part(self, queue: WaitingQueue) -> float:
        options = self._options
        return max(queue.bytes / options.max_waiting_bytes, queue.length / options.max_waiting)


def longest(gates: Iterable[HandlerGate]) -> list[LongQueue]:
    """The long queues of some handlers, the largest first."""
    found = [long for gate in gates for long in gate.long_queues.values()]
    return sorted(found, key=lambda long: -long.queue.bytes)
