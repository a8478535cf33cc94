"""From a record to what its handlers decided: the middle of the lane, without any I/O of its own.

Records of one partition number are taken in arrival order. Sync handlers run at once. A key with an async
handler or a payload under way holds its later messages back; other keys go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from time import perf_counter
from typing import Any

import structlog

from streams.claims.claim import DATAREF
from streams.dead_letters.table import DeadLetters
from streams.errors import (
    HandlerFailed,
    PermanentError,
    TransientError,
    Undecodable,
    UnknownSchema,
)
from streams.lane.housekeeping import References
from streams.lane.turns import Timed, Turns
from streams.model.application import Application, BoundHandler, BoundRoute, BoundTable
from streams.model.codecs import decode_row
from streams.model.envelope import SOURCE, Envelope
from streams.model.layout import INBOX, LANE
from streams.model.table import row_key
from streams.operator.expiry import Expiry
from streams.operator.operations import OperationProcessor
from streams.operator.pauses import Pauses
from streams.operator.replays import Replays
from streams.policy.breaker import Permit
from streams.ports import Batch, Clock, Record, Store
from streams.retry.gate import UNASKED
from streams.retry.queues import Queues
from streams.retry.retries import Retries
from streams.retry.scheduler import RetryScheduler
from streams.retry.schema_waits import SchemaWaits
from streams.staging.arrival import Arrival, Counters
from streams.staging.changes import IDS_BYTES, TIMER, Change, prefix_of
from streams.staging.inbox import Inbox
from streams.staging.outcomes import OutcomeWriter
from streams.staging.payloads import NeedsUpload, Payloads, Prepared, Unfinished, require_reference
from streams.staging.sequences import Entry, Overlay, Sequences, size_of
from streams.staging.timers import Due, timer_key
from streams.staging.unpacking import checked, decoded

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
        partitions: Sequence[int],
    ) -> None:
        """`progress` is called when an async handler has finished, with its error if it failed;
        `partitions` are the lane's.
        """
        self.sequences = Sequences(app.layout, min(IDS_BYTES, app.lane_options.max_message_bytes // 2))
        self.overlay = Overlay()
        self.counters = counters
        self._app = app
        self._store = store
        self.inbox = inbox
        self._clock = clock
        self._progress = progress
        self._busy: dict[bytes, deque[Arrival]] = {}
        #: Messages that may still be taken of what is fetched or handled in the background.
        self._free = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = Turns(counters)
        self._writer = OutcomeWriter(app, self.overlay, counters)
        letters = self._letters = DeadLetters(app, store, self.overlay, self._writer)
        queues = Queues(store, self.overlay)
        self._retries = Retries(app, queues, self._writer, letters)
        self._schemas = SchemaWaits(app, self._retries)
        self.gates = self._retries.gates
        self._payloads = Payloads(app.claims)
        self._references = None
        if app.claims is not None:
            kept = app.lane_options.claim_retention
            self._references = References(store, self.overlay, letters, app.claims.bucket, kept)
        self._scheduler = RetryScheduler(
            app, queues, self.gates, self.sequences, self._busy, self._schemas.tell, len(partitions)
        )
        self._retries.load(clock.now())
        self._pauses = Pauses(app, self.gates, queues, self._writer, self.sequences)
        self._pauses.load(store)
        self._replays = Replays(app, queues, self._writer, self._retries)
        self._operations = OperationProcessor(
            app,
            clock,
            inbox,
            overlay=self.overlay,
            writer=self._writer,
            letters=letters,
            replays=self._replays,
            pauses=self._pauses,
            sequences=self.sequences,
            dispatch=self._dispatch,
            has_room=lambda: self.room_in_flight > 0,
        )
        self._expiry = Expiry(
            app, store, letters=letters, writer=self._writer, sequences=self.sequences, counters=counters
        )

    @property
    def in_flight(self) -> int:
        """Keys with an async handler or a payload under way."""
        return len(self._busy)

    @property
    def room_in_flight(self) -> int:
        """How many keys more new messages may begin; a part is left to heads that were due and found none."""
        return self._app.lane_options.max_in_flight - self.in_flight - self._scheduler.reserved

    async def close(self) -> None:
        """Cancel what is under way; its effects were never staged."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- taking records -------------------------------------------------------------------------------

    def accept(self, batch: Batch) -> Batch | None:
        """Take records in order. Returns what could not be taken yet: too many handlers are under way.
        Raises HandlerFailed.
        """
        records = batch.records
        if not records:
            self.sequences.pass_by(batch.tp, batch.next_offset)
            return None
        if batch.tp.topic == self._app.layout.operations:
            return self._operations.accept(batch)
        route = self._app.routes[batch.tp.topic]
        self._free = self.room_in_flight
        room = min(len(records), self._free) if route.is_async else len(records)
        self._writer.at(self._clock.now())
        arrivals: list[Arrival] = []
        taken = 0
        while taken < room and self._take(batch, records[taken], route, arrivals):
            taken += 1
        if route.inbox:
            self._check_inbox(batch.tp.partition, arrivals)
        for arrival in arrivals:
            self._dispatch(arrival)
        return None if taken == len(records) else Batch(batch.tp, records[taken:], batch.next_offset)

    def _take(self, batch: Batch, record: Record, route: BoundRoute, arrivals: list[Arrival]) -> bool:
        """Give a record its place in the order; False when its payload is to be fetched, and it has to wait
        for others.
        """
        is_last = record is batch.records[-1]
        next_offset = batch.next_offset if is_last else record.offset + 1
        entry = Entry(batch.tp.partition, batch.tp, next_offset, size_of(record))
        try:
            envelope = checked(record)
            home = self._app.layout.partition_of(record.key or b"") if route.outside else record.partition
            if home != record.partition:
                self._writer.forward(entry, record, home)
                entry.done = True
            elif not record.value and DATAREF in envelope.headers:
                if self._free <= 0:
                    return False
                arrivals.append(self._referring(entry, route, record, envelope))
            else:
                message = decoded(route, record, envelope)
                arrivals.append(Arrival(entry, route, record, envelope, message, self._writer.now))
        except UnknownSchema as error:
            self._schemas.tell(error)
            self._writer.refer(entry, record)
            unread = Arrival(entry, route, record, envelope, None, self._writer.now)
            unread.error = error
            arrivals.append(unread)
        except PermanentError as error:
            self._letters.write(entry, route, record, error, handler="")
            entry.done = True
        self.sequences.add(entry)
        if is_last:
            self.sequences.end_of_batch(batch.tp, entry)
        return True

    def _referring(self, entry: Entry, route: BoundRoute, record: Record, envelope: Envelope) -> Arrival:
        """A message whose payload is fetched when its turn comes."""
        require_reference(route, envelope)
        self._free -= 1
        self._writer.refer(entry, record)
        return Arrival(entry, route, record, envelope, None, self._writer.now)

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
        seen = self.inbox.seen(local, self._writer.now)
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
            return
        if arrival.asked is not None:
            self._operations.settle(arrival)
        unfinished: Unfinished | None = None
        if not (arrival.route.is_async and arrival.handlers):
            while arrival.message is not None or not arrival.lacks_payload:
                if (unfinished := self._run(arrival)) is not None:
                    break
                if (following := self._after(arrival)) is None:
                    return
                arrival = following
        # The rest is for the background: later messages of the key wait for it.
        self._busy[key] = deque([arrival])
        task = asyncio.create_task(self._run_queue(key, unfinished))
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def _run_queue(self, key: bytes, unfinished: Unfinished | None) -> None:
        """Run a key's messages one after the other until none is left."""
        queue = self._busy[key]
        while queue:
            arrival = queue.popleft()
            if arrival.asked is not None:
                self._operations.settle(arrival)
            if unfinished is not None or arrival.lacks_payload:
                async with self._payloads.room(arrival, unfinished):
                    await self._run_async(arrival, unfinished)
                unfinished = None
            elif arrival.route.is_async:
                await self._run_async(arrival)
            elif (unfinished := self._run(arrival)) is not None:
                queue.appendleft(arrival)
                continue
            if (following := self._after(arrival)) is not None:
                queue.append(following)
            if queue:
                self._progress(None)
        del self._busy[key]

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._progress(task.exception())

    def _run(self, arrival: Arrival) -> Unfinished | None:
        """Run the handlers at once, up to one whose outcome has a payload that is to be written first."""
        began = perf_counter()
        for handler, inbox_key in arrival.handlers:
            attempts = arrival.attempts
            clear = self.gates[handler.name].clear and arrival.error is None
            permit = UNASKED if clear else self._admit(arrival, handler, inbox_key)
            while permit is not None:
                try:
                    outcome = self._call(arrival, handler)
                    self._writer.stage(arrival, handler, outcome, inbox_key)
                except NeedsUpload as upload:
                    names = [each.name for each, _ in arrival.handlers]
                    arrival.handlers = arrival.handlers[names.index(handler.name) :]
                    return Unfinished(permit, attempts, upload.size)
                except (HandlerFailed, UnknownSchema):  # of its rows: no message is to blame
                    raise
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - logged and decided on
                    attempts += 1
                    permit = self._failed(arrival, handler, inbox_key, error, attempts, permit)
                else:
                    self._succeeded(arrival, handler, permit)
                    break
            began = self._turns.ended(handler.name, arrival, began)
        self._done(arrival)
        return None

    async def _run_async(self, arrival: Arrival, unfinished: Unfinished | None = None) -> None:
        for handler, inbox_key in arrival.handlers:
            gate = self.gates[handler.name]
            gate.under_way += 1
            if unfinished is None:
                attempts, clear = arrival.attempts, gate.clear and arrival.error is None
                permit = UNASKED if clear else self._admit(arrival, handler, inbox_key)
            else:
                (permit, attempts, _), unfinished = unfinished, None
            while permit is not None:
                try:
                    if arrival.message is None and not await self._fetch(arrival, handler, inbox_key, permit):
                        break
                    began = perf_counter()
                    outcome = self._call(arrival, handler)
                    if handler.is_async:
                        outcome = await Timed(outcome, self._turns, handler.name, arrival)
                        began = perf_counter()
                    prepared = self._writer.stage(arrival, handler, outcome, inbox_key, ())
                    self._turns.ended(handler.name, arrival, began)
                    if prepared is not None:
                        await self._write(arrival.entry, prepared)
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
            gate.under_way -= 1
        self._done(arrival)

    async def _fetch(
        self, arrival: Arrival, handler: BoundHandler, inbox_key: bytes | None, permit: Permit
    ) -> bool:
        """Give a message its payload. False: now that it has it, it waits behind others of its order."""
        await self._payloads.fetch(arrival)
        return not self._retries.requeue_by_order_key(arrival, handler, inbox_key, permit, self._at_now())

    async def _write(self, entry: Entry, prepared: Prepared) -> None:
        """Write the payloads of an outcome, and only then stage it."""
        await self._payloads.write(prepared.uploads)
        if removed := self._writer.put_prepared(entry, prepared):
            self._append(entry.partition, removed)

    def _admit(self, arrival: Arrival, handler: BoundHandler, inbox_key: bytes | None) -> Permit | None:
        if isinstance(arrival.error, UnknownSchema):
            self._schemas.wait(arrival, handler, inbox_key, arrival.error, self._at_now())
            return None
        if not arrival.queue:
            return self._retries.admit(arrival, handler, inbox_key, self._at_now)
        now = self._at_now()
        if self._retries.waits_on(arrival, handler):
            return None
        permit = arrival.permit
        if arrival.error is not None:
            self._retries.give_up(arrival, handler, inbox_key, arrival.error, arrival.attempts, now)
        elif permit is not None and self._retries.requeue_by_order_key(
            arrival, handler, inbox_key, permit, now
        ):
            return None
        return permit

    def _succeeded(self, arrival: Arrival, handler: BoundHandler, permit: Permit) -> None:
        if permit is UNASKED:
            self.gates[handler.name].succeeded += 1
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
        self._writer.at(now)
        return now

    def _done(self, arrival: Arrival) -> None:
        self.sequences.finished(arrival.entry)
        if arrival.handlers:
            self.counters.handled += 1

    def _after(self, arrival: Arrival) -> Arrival | None:
        """Whoever has waited behind a message that waited itself, if it may run now."""
        return self._scheduler.after(arrival, self._at_now()) if arrival.queue else None

    def _call(self, arrival: Arrival, handler: BoundHandler) -> Any:
        key, prefix = arrival.record.key or b"", arrival.entry.prefix
        rows = [
            partial(self._read_sub, table, prefix + row_key(key))
            if any_row
            else self._read(table, prefix + row_key(key, subkey(arrival.message).encode() if subkey else b""))
            for _, table, subkey, any_row in handler.rows
        ]
        if handler.wants_envelope:
            return handler.call(arrival.message, *rows, envelope=arrival.envelope)
        return handler.call(arrival.message, *rows)

    def _read_sub(self, table: BoundTable, base: bytes, subkey: str) -> Any:
        return self._read(table, base + subkey.encode())

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
        """Run heads of queues that are due, `room` messages at most, and tell of handlers that have drained;
        returns how many there were.
        """
        with closing(self._scheduler.due(room, self._at_now())) as due:
            for arrival in due:
                self._dispatch(arrival)
        return self._scheduler.tried + self._pauses.drain(self._at_now())

    def tidy(self) -> None:
        """Drop entries of the due index that are not true any more, of handlers for which nothing waits."""
        self._scheduler.tidy(self._clock.now())

    def expire(self, now: float) -> int:
        """Let dead letters expire that are too old at `now`, epoch seconds; returns how many."""
        self._writer.at(now)
        return self._expiry.step(now)

    def watch_letters(self) -> None:
        """Tell in the log of dead letters that others wait behind."""
        self._replays.tell_of_holds()

    def is_staged(self, timer: bytes) -> bool:
        """Whether a change of a timer, by its local name, is not committed yet."""
        return self.overlay.get(LANE, timer[:2] + TIMER + timer[2:]) is not None

    def fire(self, due: Due) -> bool:
        """Stage the message of a due timer of which no change is staged; False when one may yet be, by an
        async handler of its key, whose changes come first.
        """
        if timer_key(due.name) in self._busy:
            return False
        self.sequences.add(self._writer.fire(due, self._at_now()))
        return True

    def keep_house(self, now: float) -> bool:
        """Stage a step of what keeps and removes references, at `now`; True when there was something to."""
        if self._references is None:
            return False
        changes = self._references.step(now)
        for partition, some in changes.items():
            self._append(partition, some)
        self.counters.references_removed = self._references.removed
        return bool(changes)

    def _append(self, partition: int, changes: Sequence[Change]) -> None:
        entry = Entry(partition, None, 0)
        self._writer.put(entry, changes)
        entry.done = True
        self.sequences.add(entry)
