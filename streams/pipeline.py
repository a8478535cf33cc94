"""From a record to what its handlers decided: the middle of the lane, without any I/O of its own.

Records of one partition number are taken in arrival order. Sync handlers run at once. A key with an async
handler under way holds its later messages back; other keys go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import structlog

from streams.application import Application, BoundHandler, BoundRoute, BoundTable
from streams.arrival import Arrival, Counters
from streams.breaker import Permit
from streams.changes import INBOX, LANE, TIMER, Change, prefix_of
from streams.codecs import decode_row
from streams.envelope import SOURCE, Envelope, headers_size
from streams.errors import (
    HandlerFailed,
    KeyMismatch,
    MessageExpired,
    MissingHeader,
    PermanentError,
    TooLarge,
    TransientError,
    Undecodable,
    UnknownSchema,
)
from streams.gate import UNASKED, Gate
from streams.inbox import Inbox
from streams.ports import TP, Batch, Clock, Outgoing, Record, Store
from streams.queues import Queues
from streams.retries import Retries
from streams.stager import Stager
from streams.staging import Entry, Overlay, Sequences
from streams.table import MAX_KEY_BYTES, row_key
from streams.timers import Due, timer_key
from streams.waiting import Queue, Reason, handler_of

#: What a record's batch takes beside it, in bytes.
FRAME = 128
#: Heads of queues run in one go, before other lanes and what comes in have their turn.
RETRIES_AT_ONCE = 200

log = structlog.get_logger(__name__)


class Pipeline:
    """Runs handlers over the overlay and the store, and stages what they decide."""

    def __init__(
        self,
        app: Application,
        store: Store,
        inbox: Inbox,
        clock: Clock,
        counters: Counters,
        progress: Callable[[BaseException | None], None],
    ) -> None:
        """`progress` is called when an async handler has finished, with its error if it failed."""
        self.sequences = Sequences(app.layout)
        self.overlay = Overlay()
        self.counters = counters
        #: Partitions of which the next record waits for its schema.
        self.waiting: set[TP] = set()
        self._app = app
        self._store = store
        self.inbox = inbox
        self._clock = clock
        self._progress = progress
        self._busy: dict[bytes, deque[Arrival]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()
        self._stager = Stager(app, self.overlay, counters)
        self._queues = Queues(store, self.overlay)
        self._retries = Retries(app, self._queues, self._stager)
        self._gates = self._retries.gates
        self._tried = 0
        self._may_try = 0
        self._reserved = 0
        self._turn = 0
        self._retries.load(clock.now())

    @property
    def in_flight(self) -> int:
        """Keys with an async handler under way."""
        return len(self._busy)

    @property
    def room_in_flight(self) -> int:
        """How many keys more new messages may begin; a part is left to heads that were due and found none."""
        return self._app.delivery.max_in_flight - self.in_flight - self._reserved

    async def close(self) -> None:
        """Cancel what is under way; its effects were never staged."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- taking records -------------------------------------------------------------------------------

    def accept(self, batch: Batch) -> Batch | None:
        """Take records in order. Returns what could not be taken yet: their schema is unknown, or too many
        handlers are under way. Raises HandlerFailed.
        """
        route = self._app.routes[batch.tp.topic]
        records = batch.records
        if not records:
            self.sequences.pass_by(batch.tp, batch.next_offset)
            return None
        room = len(records)
        if route.is_async:
            room = min(room, self.room_in_flight)
        self._stager.at(self._clock.now())
        arrivals: list[Arrival] = []
        taken = 0
        while taken < room and self._take(batch, records[taken], route, arrivals):
            taken += 1
        (self.waiting.add if taken < room else self.waiting.discard)(batch.tp)
        if route.inbox:
            self._check_inbox(batch.tp.partition, arrivals)
        for arrival in arrivals:
            self._dispatch(arrival)
        return None if taken == len(records) else Batch(batch.tp, records[taken:], batch.next_offset)

    def _take(self, batch: Batch, record: Record, route: BoundRoute, arrivals: list[Arrival]) -> bool:
        """Give a record its place in the order; False when it has to wait for its schema."""
        is_last = record is batch.records[-1]
        next_offset = batch.next_offset if is_last else record.offset + 1
        entry = Entry(batch.tp.partition, batch.tp, next_offset, len(record.value or b""))
        try:
            envelope = Envelope(record)
            if record.key is None or record.value is None:
                missing = "key" if record.key is None else "value"
                raise MissingHeader(f"{record.topic} offset {record.offset} has no {missing}")
            if len(record.key) > MAX_KEY_BYTES:
                raise TooLarge(f"its key has {len(record.key)} bytes, the limit is {MAX_KEY_BYTES}")
            if route.outside and (home := self._app.layout.partition_of(record.key)) != record.partition:
                self._forward(entry, record, home)
            else:
                message = route.codec.decode(record.value, envelope.fingerprint)
                if route.outside and (key := _key_of(message)) != record.key:
                    raise KeyMismatch(f"it is about {key!r}, its key is {record.key!r}")
                arrivals.append(Arrival(entry, route, record, envelope, message))
        except UnknownSchema as error:
            self._tell_once(error)
            return False
        except PermanentError as error:
            self._stager.bury(entry, route, record, error, handler="")
            entry.done = True
        self.sequences.add(entry)
        if is_last:
            self.sequences.end_of_batch(batch.tp, entry)
        return True

    def _tell_once(self, error: UnknownSchema) -> None:
        if error.fingerprint not in self._told:
            self._told.add(error.fingerprint)
            log.warning("schema_unknown", fingerprint=error.fingerprint, action=str(error))

    def _forward(self, entry: Entry, record: Record, home: int) -> None:
        """A client with another partitioner: the message goes on to the lane of its key (design rule 2)."""
        size = len(record.key or b"") + len(record.value or b"") + headers_size(record.headers)
        if size + FRAME > self._app.delivery.max_message_bytes:  # it came compressed
            raise TooLarge(f"it is to be sent on to partition {home}, and has {size} bytes uncompressed")
        self.counters.misrouted += 1
        entry.sends.append((TP(record.topic, home), Outgoing(record.key, record.value, record.headers)))
        entry.done = True

    def _check_inbox(self, partition: int, arrivals: Sequence[Arrival]) -> None:
        """Drop handlers that have seen the message; mark it for the others before any of them runs."""
        pairs = [
            (arrival, handler, self.inbox.key(handler.name_bytes, source, arrival.envelope.id_bytes))
            for arrival in arrivals
            for source in (arrival.envelope.headers.get(SOURCE) or b"",)
            for handler in arrival.route.handlers
        ]
        prefix = prefix_of(partition)
        local = [prefix + key for _, _, key in pairs]
        seen = self.inbox.seen(local, self._stager.now)
        for arrival in arrivals:
            arrival.handlers = ()
        for (arrival, handler, key), own, was_seen in zip(pairs, local, seen, strict=True):
            if was_seen or self.overlay.get(INBOX, own) is not None:
                self.counters.duplicates += 1
            else:
                self.overlay.put(own, Change(INBOX, key, b""))
                arrival.handlers = (*arrival.handlers, (handler, key))

    # -- running handlers -----------------------------------------------------------------------------

    def _dispatch(self, arrival: Arrival) -> None:
        key = arrival.record.key or b""
        if key in self._busy:
            self._busy[key].append(arrival)
        elif arrival.route.is_async and arrival.handlers:
            self._busy[key] = deque([arrival])
            task = asyncio.create_task(self._run_queue(key))
            self._tasks.add(task)
            task.add_done_callback(self._finished)
        else:
            following: Arrival | None = arrival
            while following is not None:
                self._run(following)
                following = self._after(following)

    async def _run_queue(self, key: bytes) -> None:
        """Run a key's messages one after the other until none is left."""
        queue = self._busy[key]
        while queue:
            arrival = queue.popleft()
            if arrival.route.is_async:
                await self._run_async(arrival)
            else:
                self._run(arrival)
            if (following := self._after(arrival)) is not None:
                queue.append(following)
            if queue:
                self._progress(None)
        del self._busy[key]

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._progress(task.exception())

    def _run(self, arrival: Arrival) -> None:
        for handler, inbox_key in arrival.handlers:
            clear = self._gates[handler.name].clear
            permit, attempts = (
                UNASKED if clear else self._admit(arrival, handler, inbox_key),
                arrival.attempts,
            )
            while permit is not None:
                try:
                    outcome = self._call(arrival, handler)
                    self._stager.stage(arrival, handler, outcome, inbox_key)
                except (HandlerFailed, UnknownSchema):  # of its rows: no message is to blame
                    raise
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - logged and decided on
                    attempts += 1
                    permit = self._failed(arrival, handler, inbox_key, error, attempts, permit)
                else:
                    self._succeeded(arrival, handler, permit)
                    break
        self._done(arrival)

    async def _run_async(self, arrival: Arrival) -> None:
        for handler, inbox_key in arrival.handlers:
            clear = self._gates[handler.name].clear
            permit, attempts = (
                UNASKED if clear else self._admit(arrival, handler, inbox_key),
                arrival.attempts,
            )
            while permit is not None:
                try:
                    outcome = self._call(arrival, handler)
                    if handler.is_async:
                        outcome = await outcome
                    self._stager.stage(arrival, handler, outcome, inbox_key)
                except (HandlerFailed, UnknownSchema):  # of its rows: no message is to blame
                    raise
                except (Exception, asyncio.CancelledError) as error:
                    if (task := asyncio.current_task()) is not None and task.cancelling():
                        raise
                    attempts += 1
                    permit = self._failed(arrival, handler, inbox_key, error, attempts, permit)
                else:
                    self._succeeded(arrival, handler, permit)
                    break
        self._done(arrival)

    def _admit(self, arrival: Arrival, handler: BoundHandler, inbox_key: bytes | None) -> Permit | None:
        now = self._at_now()
        if not arrival.queue:
            return self._retries.admit(arrival, handler, inbox_key, now)
        if arrival.error is not None:
            self._retries.give_up(arrival, handler, inbox_key, arrival.error, arrival.attempts, now)
        return arrival.permit

    def _succeeded(self, arrival: Arrival, handler: BoundHandler, permit: Permit) -> None:
        if permit is UNASKED:
            self._gates[handler.name].succeeded += 1
        else:
            self._retries.succeeded(arrival, handler, permit, self._at_now())

    def _failed(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        error: BaseException,
        attempts: int,
        permit: Permit,
    ) -> Permit | None:
        if not isinstance(error, Exception):
            error = TransientError("something that it waited for was cancelled")
        now = self._at_now()
        return self._retries.failed(arrival, handler, inbox_key, error, attempts, permit, now)

    def _at_now(self) -> float:
        now = self._clock.now()
        self._stager.at(now)
        return now

    def _done(self, arrival: Arrival) -> None:
        arrival.entry.done = True
        if arrival.handlers:
            self.counters.handled += 1

    def _after(self, arrival: Arrival) -> Arrival | None:
        """Whoever has waited behind a message that waited itself, if it may run now."""
        if not arrival.queue or self._tried >= self._may_try or self._is_full:
            return None
        handler = self._app.handlers[handler_of(arrival.queue[2:]).decode()]
        queue = self._queues.get(arrival.queue)
        if queue is None or queue.reason is not Reason.NEXT:
            return None
        return self._head(handler, arrival.queue, queue, self._at_now())

    @property
    def _is_full(self) -> bool:
        return self.sequences.held_bytes >= self._app.delivery.max_backlog_bytes

    def _call(self, arrival: Arrival, handler: BoundHandler) -> Any:
        key, prefix = arrival.record.key or b"", arrival.entry.prefix
        rows = [
            self._read(table, prefix + row_key(key, subkey(arrival.message).encode() if subkey else b""))
            for _, table, subkey in handler.rows
        ]
        if handler.wants_envelope:
            return handler.call(arrival.message, *rows, envelope=arrival.envelope)
        return handler.call(arrival.message, *rows)

    def _read(self, table: BoundTable, local: bytes) -> Any:
        staged = self.overlay.get(table.name, local)
        if staged is not None:
            return staged.row
        data = self._store.get(table.name, local)
        if data is None:
            return None
        try:
            return decode_row(table.codec, data)
        except Undecodable as error:  # our own state: no message is to blame for it
            raise HandlerFailed(
                f"a row of table {table.name}, key {local[4:]!r}, cannot be read: {error}"
            ) from error

    def retry(self, room: int) -> int:
        """Run heads of queues that are due, `room` messages at most; returns how many. Handlers take turns
        in being first.
        """
        now = self._at_now()
        self._tried = self._reserved = 0
        self._may_try = min(room, RETRIES_AT_ONCE)
        self._turn += 1
        names = list(self._gates)
        first = self._turn % len(names) if names else 0
        for name in (*names[first:], *names[:first]):
            gate = self._gates[name]
            gate.tell(now)
            if gate.queues and gate.breaker.allowed_from <= now:
                self._retry(gate, self._app.handlers[name], now)
        return self._tried

    def tidy(self) -> None:
        """Drop entries of the due index that are not true any more, of handlers for which nothing waits."""
        for name in self._gates:
            for _ in self._queues.due(name, self._clock.now()):
                pass

    def _retry(self, gate: Gate, handler: BoundHandler, now: float) -> None:
        most = self._app.delivery.max_in_flight
        share = self._tried + max(1, (self._may_try - self._tried) // 2)
        with closing(self._queues.due(gate.handler, now)) as heads:
            for local, queue in heads:
                if self._is_full or self._tried >= min(share, self._may_try):
                    return
                if local in gate.running:
                    continue
                if handler.is_async and self.in_flight >= most:
                    self._reserved = max(1, most // 4)
                    return
                arrival = self._head(handler, local, queue, now)
                if arrival is not None:
                    self._dispatch(arrival)
                elif gate.breaker.allowed_from > now:
                    return

    def _head(self, handler: BoundHandler, local: bytes, queue: Queue, now: float) -> Arrival | None:
        """The first message of a queue, on its way; None: not now."""
        gate, waiting = self._gates[handler.name], self._queues.head(local, queue)
        route = self._app.routes.get(waiting.topic)
        if route is None or handler not in route.handlers:
            log.warning("waiting_for_no_handler", handler=handler.name, topic=waiting.topic)
            gate.running.add(local)  # until a version that knows what to do with it
            return None
        entry = Entry(waiting.partition, None, 0, len(waiting.value))
        arrival = Arrival(entry, route, waiting, Envelope(waiting), None)
        arrival.queue, arrival.attempts = local, queue.attempts
        arrival.handlers = ((handler, None),)
        try:
            deadline = arrival.envelope.deadline
            if deadline is not None and deadline < now:
                raise MessageExpired(f"its deadline was {now - deadline:.1f} s ago when its turn came")
            arrival.message = route.codec.decode(waiting.value, arrival.envelope.fingerprint)
        except UnknownSchema as error:
            self._tell_once(error)
            return None
        except PermanentError as error:
            arrival.error = error  # given up in its turn: what came before it is not staged yet
        else:
            arrival.permit = gate.breaker.acquire(now)
            if arrival.permit is None:
                return None
        self._tried += 1
        gate.running.add(local)
        self.sequences.add(entry)
        return arrival

    def fire(self, due: Due) -> bool:
        """Stage a due timer's message; False when it has been moved, cancelled or fired meanwhile, or may
        yet be: by an async handler of its key, whose changes come first.
        """
        if self.overlay.get(LANE, prefix_of(due.partition) + TIMER + due.name) is not None:
            return False
        if timer_key(due.name) in self._busy:
            return False
        self.sequences.add(self._stager.fire(due, self._clock.now()))
        return True


def _key_of(message: Any) -> bytes:
    try:
        key: str = message.key
        return key.encode()
    except Exception as error:
        raise KeyMismatch(f"what it is about cannot be told: {error!r}") from error
