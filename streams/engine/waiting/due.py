"""Start the heads of queues that are due, within the lane's bounds (docs/adr/0009).

Handlers take turns to come first, and none takes all of the room while others have due messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import closing

import structlog

from streams.engine.staging.arrival import Head, Later
from streams.engine.staging.entry import HeadEntry
from streams.engine.staging.keys import name_in, prefix_in, split_store_key
from streams.engine.staging.payloads import refers, unpacked
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.queue import Reason, WaitingQueue, handler_of, index_prefix
from streams.engine.waiting.waiting import Waiting
from streams.errors import MessageExpired, PermanentError, RowUnreadable, UnknownSchema
from streams.model.bound import BoundHandler

#: Maximum heads that start in one step, before new messages and other lanes have their turn.
RETRIES_AT_ONCE = 200
#: Reasons for which a head runs as soon as the message before it has left the queue.
ITS_TURN = (Reason.NEXT, Reason.REPLAY)

log = structlog.get_logger(__name__)


class DueHeads:
    """Starts due heads of one lane. A started head has an entry in the commit order, and must run.

    Attributes:
        started: number of heads started since the last call of `due`.
        reserved: slots in flight that new messages must leave free, because a due head found none.
    """

    def __init__(self, waiting: Waiting, in_flight: dict[bytes, Later], partitions: int) -> None:
        """`in_flight` has the keys whose handlers run in the background, each with its later messages.
        `partitions` is the number of partitions of the lane.
        """
        self.started = 0
        self.reserved = 0
        self._app = waiting.staging.app
        self._waiting = waiting
        self._queues = waiting.queues
        self._gates = waiting.gates
        self._staging = waiting.staging
        self.in_flight = in_flight
        self._partitions = partitions
        self._most = 0
        self._turn = 0

    def due(self, room: Callable[[], int], now: float) -> Generator[Head, None, None]:
        """Start the heads that are due at `now` (epoch seconds). `room` bounds them and the messages that
        follow them. Dispatch each before the next one is requested.
        """
        self.started = self.reserved = 0
        names = [name for name, gate in self._gates.items() if gate.queues or gate.succeeded]
        if not names:
            return
        self._most = min(room(), RETRIES_AT_ONCE)
        self._turn += 1
        first = self._turn % len(names)
        for name in (*names[first:], *names[:first]):
            gate = self._gates[name]
            gate.update_breaker(now)
            if gate.queues and gate.breaker.allowed_from <= now:
                yield from self._announced(gate, self._app.handlers[name], now)
                yield from self._due(gate, self._app.handlers[name], now)

    def after(self, done: Head, now: float) -> Head | None:
        """Start the message behind one that was the head of its queue, if it may run now."""
        if self.started >= self._most or self._is_full:
            return None
        local = done.queue
        handler = self._app.handlers[handler_of(name_in(local)).decode()]
        queue = self._queues.get(local)
        if (
            queue is None
            or queue.reason not in ITS_TURN
            or prefix_in(local) in self._gates[handler.name].shut
        ):
            return None
        if done.record.key not in self.in_flight and self._lacks_place(handler, local, queue):
            return None
        return self._start(handler, local, queue, now)

    def drop_stale(self, now: float) -> None:
        """Remove stale entries of the due index, also of handlers for which no message waits."""
        for gate in self._gates.values():
            for _ in self._queues.due(self._parts_of(gate), now):
                pass

    def _parts_of(self, gate: HandlerGate) -> dict[bytes, Collection[bytes]]:
        """The parts of the due index with heads that may run, each with the partitions to leave out. Empty if
        the handler is paused in the whole lane.
        """
        name = gate.handler.encode()
        found: dict[bytes, Collection[bytes]] = {}
        if len(gate.shut) < self._partitions:
            found[index_prefix(name)] = gate.shut
            if gate.unread.used:
                found[index_prefix(name, Reason.SCHEMA)] = gate.shut
        if len(gate.pauses) < self._partitions:
            found[index_prefix(name, Reason.PAUSED)] = gate.pauses
        return found

    def _announced(self, gate: HandlerGate, handler: BoundHandler, now: float) -> Generator[Head, None, None]:
        """Start the heads that waited for a schema which has been announced meanwhile."""
        for local in gate.unread.ready(self._app.routes, now):
            if self._is_full or self.started >= self._most:
                return
            if local in gate.running or prefix_in(local) in gate.shut:
                gate.unread.later(local)
                continue
            queue = self._queues.get(local)
            behind = queue.behind[0] if queue is not None and queue.behind is not None else None
            if queue is None or Reason.SCHEMA not in (queue.reason, behind) or local in gate.unroutable:
                gate.unread.forget(local)
            elif queue.reason is not Reason.SCHEMA:  # replays come first
                gate.unread.later(local)
            elif self._lacks_place(handler, local, queue):
                self._reserve()
                return
            elif (head := self._start(handler, local, queue, now)) is not None:
                gate.unread.later(local)  # until it has left, or waits for another reason
                yield head
            elif gate.breaker.allowed_from > now:
                return

    def _due(self, gate: HandlerGate, handler: BoundHandler, now: float) -> Generator[Head, None, None]:
        share = self.started + max(1, (self._most - self.started) // 2)
        with closing(self._queues.due(self._parts_of(gate), now)) as heads:
            for local, queue in heads:
                if self._is_full or self.started >= min(share, self._most):
                    return
                if local in gate.running or local in gate.unroutable:
                    continue
                if self._lacks_place(handler, local, queue):
                    self._reserve()
                    return
                head = self._start(handler, local, queue, now)
                if head is not None:
                    yield head
                elif gate.breaker.allowed_from > now:
                    return

    def _reserve(self) -> None:
        """Reserve slots in flight for due heads, because one found none."""
        self.reserved = max(1, self._app.lane_options.max_in_flight // 4)

    @property
    def _is_full(self) -> bool:
        return self._staging.order.uncommitted_bytes >= self._app.lane_options.max_backlog_bytes

    def _lacks_place(self, handler: BoundHandler, local: bytes, queue: WaitingQueue) -> bool:
        """Whether a head needs a slot in flight, for an async handler or a payload, and there is none."""
        if len(self.in_flight) < self._app.lane_options.max_in_flight:
            return False
        if handler.is_async:
            return True
        try:
            head = self._queues.head(local, queue)
            return refers(self._app.routes.get(head.topic), head)
        except RowUnreadable:
            return False  # its queue becomes unroutable

    def _start(self, handler: BoundHandler, local: bytes, queue: WaitingQueue, now: float) -> Head | None:
        """Start the head of a queue: give it an entry and a permit. None: it cannot run now."""
        gate = self._gates[handler.name]
        try:
            waiting = self._queues.head(local, queue)
        except RowUnreadable:
            gate.unroutable.add(local)  # messages behind it keep waiting, to preserve their order
            return None
        route = self._app.routes.get(waiting.topic)
        if route is None or handler not in route.handlers:
            log.warning("waiting_for_no_handler", handler=handler.name, topic=waiting.topic)
            gate.unroutable.add(local)  # until a version that knows what to do with it
            return None
        partition, _ = split_store_key(local)
        entry = HeadEntry(partition, waiting.size, waiting.key or b"", local, queue.head)
        since, tries = min(waiting.waits_since, now), queue.attempts
        head = Head(
            entry, route, waiting, since, handler, local, queue.head, tries=tries, is_replay=waiting.letter
        )
        try:
            if self._staging.refusals.found and (refused := self._staging.refusals.of(entry)) is not None:
                raise refused
            head.message = unpacked(route, waiting, head.envelope)
            if not waiting.letter:  # an operator who replays a dead letter wants it to run anyway
                _check_deadline(head, queue, now)
        except UnknownSchema as error:
            self._waiting.log_unknown(error)
            head.error = error  # it keeps waiting, or is given up, in its turn
        except PermanentError as error:
            head.error = error  # given up in its turn, because earlier messages are not staged yet
        else:
            permit = gate.breaker.acquire(now)
            if permit is None:
                return None
            head.attempt.permit = permit
        self.started += 1
        gate.running.add(local)
        self._staging.order.add(entry)
        return head


def _check_deadline(head: Head, queue: WaitingQueue, now: float) -> None:
    """Raises MessageExpired if the deadline of a head has passed. If the deadline counts from when a lane
    took the message, a retry that was due before it still runs when the lane is late, and so does the first
    attempt after a wait for a schema.
    """
    deadline = head.deadline
    own_time = head.envelope.deadline is None
    if deadline is None or (own_time and queue.reason is Reason.SCHEMA):
        return
    planned = own_time and queue.reason is Reason.RETRY
    if deadline < (min(now, queue.due_ms / 1000 - 0.001) if planned else now):
        raise MessageExpired(f"its deadline was {now - deadline:.1f} s ago when its turn came")
