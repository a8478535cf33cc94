"""A handler sees a message: its outcome is staged, or `retry.failures` decides what follows its error."""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter
from typing import Any

from streams.errors import HandlerFailed, StoreFailed, TransientError, Undecodable, UnknownSchema
from streams.lane.spans import LaneSpans
from streams.lane.turns import Timed, Turns
from streams.logs import HANDLED
from streams.model.application import BoundHandler, BoundTable
from streams.model.codecs import decode_row
from streams.model.row_keys import row_key
from streams.ports import Clock
from streams.retry.admit import may_run, requeue_by_order_key
from streams.retry.failures import failed
from streams.retry.gate import NO_PERMIT
from streams.retry.waiting import Waiting
from streams.staging.area import StagingArea
from streams.staging.arrival import Arrival, Attempt
from streams.staging.payloads import NeedsUpload, Payloads, Unfinished


class Attempts:
    """Runs the handlers of a message, one after the other."""

    def __init__(
        self, waiting: Waiting, payloads: Payloads, clock: Clock, spans: LaneSpans | None = None
    ) -> None:
        """With `spans`, each attempt at a message of a recorded trace has its span."""
        self.waiting = waiting
        self.payloads = payloads
        self.clock = clock
        self.spans = spans
        self._gates = waiting.gates
        self._outcomes = waiting.outcomes
        self._staging = waiting.staging
        self._turns = Turns(waiting.staging.counters)

    def run(self, arrival: Arrival, now: float) -> Unfinished | None:
        """Run the handlers at once, in their order. Returns the attempt whose outcome has a payload that must
        be written first: it goes on in the background. `now` in epoch seconds.

        Raises HandlerFailed or StoreFailed.
        """
        HANDLED.set(arrival)
        began = perf_counter()
        for number, (handler, inbox_key) in enumerate(arrival.handlers):
            gate, error = self._gates[handler.name], None
            straight = gate.clear and arrival.error is None
            if straight:  # nothing waits: no attempt of its own is needed
                error = self._once(arrival, handler, inbox_key, arrival.attempts, now)
            if not straight or error is not None:
                attempt = Attempt(arrival, handler, inbox_key, NO_PERMIT, arrival.attempts)
                if (unfinished := self._try_until_decided(attempt, error, began)) is not None:
                    arrival.handlers = arrival.handlers[number:]
                    arrival.span = None  # it begins again
                    HANDLED.set(None)
                    return unfinished
            ended = self._turns.ended(handler.name, arrival, began)
            if straight and error is None:
                gate.handled(NO_PERMIT, ended - began, now)
                if arrival.span is not None:
                    _end_span(arrival)
            began = ended
        HANDLED.set(None)
        return None

    async def run_in_background(self, arrival: Arrival, unfinished: Unfinished | None = None) -> None:
        """Run the handlers where that takes time: a handler is async, or a payload is fetched or written.
        `unfinished` is the first handler's attempt, if it has begun already.
        """
        HANDLED.set(arrival)
        for handler, inbox_key in arrival.handlers:
            gate = self._gates[handler.name]
            gate.under_way += 1
            if unfinished is not None:
                attempt, runs = unfinished.attempt, True
                unfinished = None
            else:
                attempt = Attempt(arrival, handler, inbox_key, NO_PERMIT, arrival.attempts)
                straight = gate.clear and arrival.error is None
                runs = straight or may_run(self.waiting, attempt, self.clock.now())
            if runs:
                await self._try_in_background(attempt)
            gate.under_way -= 1
        HANDLED.set(None)

    def _try_until_decided(
        self, attempt: Attempt, error: BaseException | None, began: float
    ) -> Unfinished | None:
        """Call a sync handler until it succeeds, or its message waits or is given up. `error` is what it has
        raised already; None: it was not called, for something waits before it. Returns the attempt if a
        payload must be written first.
        """
        arrival = attempt.arrival
        again = error is not None or may_run(self.waiting, attempt, self.clock.now())
        while again:
            if error is None:
                began, now = perf_counter(), self.clock.now()
                error = self._once(arrival, attempt.handler, attempt.inbox_key, attempt.attempts, now)
            if isinstance(error, NeedsUpload):
                return Unfinished(attempt, error.size)
            again, error = self._settle(attempt, error, began), None
        return None

    async def _try_in_background(self, attempt: Attempt) -> None:
        """As `_try_until_decided`, where the attempt takes time."""
        arrival, again = attempt.arrival, True
        while again:
            began = perf_counter()
            if self.spans is not None:
                arrival.span = self.spans.begin_attempt(arrival, attempt.handler.name, attempt.attempts + 1)
            try:
                if arrival.message is None and not await self._fetch(attempt):
                    arrival.span = None  # nothing was tried
                    return
                await self._call_and_stage(attempt)
            except (HandlerFailed, StoreFailed):  # no message is to blame
                raise
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    if arrival.span is not None:
                        arrival.span.failed(error)
                        _end_span(arrival, "cancelled")
                    raise
                again = self._settle(attempt, error, began)
            else:
                again = self._settle(attempt, None, began)

    def _once(
        self, arrival: Arrival, handler: BoundHandler, inbox_key: bytes | None, attempts: int, now: float
    ) -> BaseException | None:
        """Call a sync handler and stage its outcome. Returns what was raised; raises what no message is to
        blame for.
        """
        if self.spans is not None:
            arrival.span = self.spans.begin_attempt(arrival, handler.name, attempts + 1)
        try:
            outcome = call(self._staging, arrival, handler)
            self._outcomes.stage(arrival, handler, outcome, inbox_key, now)
        except (HandlerFailed, StoreFailed):  # no message is to blame
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - logged and decided on
            return error
        return None

    async def _call_and_stage(self, attempt: Attempt) -> None:
        """Call a handler and await it if it is async, write the payloads of its outcome, and stage that."""
        arrival, handler = attempt.arrival, attempt.handler
        began = perf_counter()
        outcome = call(self._staging, arrival, handler)
        if handler.is_async:
            outcome = await Timed(outcome, self._turns, handler.name, arrival)
            began = perf_counter()
        now = self.clock.now()
        prepared = self._outcomes.stage(arrival, handler, outcome, attempt.inbox_key, now, ())
        self._turns.ended(handler.name, arrival, began)
        if prepared is not None:
            await self.payloads.write(prepared.uploads)
            if removed := self._outcomes.put_prepared(arrival.entry, prepared):
                self._staging.append(arrival.entry.partition, removed)

    async def _fetch(self, attempt: Attempt) -> bool:
        """Fetch the payload of a message. False: with it, the message waits behind others of its order."""
        await self.payloads.fetch(attempt.arrival)
        return not requeue_by_order_key(self.waiting, attempt, self.clock.now())

    def _settle(self, attempt: Attempt, error: BaseException | None, began: float) -> bool:
        """Settle an attempt that ended with `error`; None: success. True: the handler tries again at once."""
        arrival, seconds, now = attempt.arrival, perf_counter() - began, self.clock.now()
        if error is None:
            self.waiting.succeeded(attempt, seconds, now)
            if arrival.span is not None:
                _end_span(arrival)
            return False
        attempt.attempts += 1
        measures = self._gates[attempt.handler.name].measures
        if measures is not None:
            measures.failed.add(seconds)
        if not isinstance(error, Exception):
            error = TransientError("something that it waited for was cancelled")
        again = failed(self.waiting, attempt, error, now)
        if arrival.span is not None:
            _end_span(arrival, "failed")
        return again


def call(staging: StagingArea, arrival: Arrival, handler: BoundHandler) -> Any:
    """Call a handler with a message and the rows that it asks for: its outcome, or one to be awaited. Raises
    RowUnreadable or RowSchemaUnknown, and what the handler raises.
    """
    rows: list[Any] = []
    if handler.rows:
        base = arrival.entry.prefix + row_key(arrival.record.key or b"")
        for _, table, subkey, any_row in handler.rows:
            if any_row:
                rows.append(partial(_read_sub, staging, table, base))
            else:
                local = base + subkey(arrival.message).encode() if subkey else base
                rows.append(_read(staging, table, local))
    if handler.wants_envelope:
        return handler.call(arrival.message, *rows, envelope=arrival.envelope)
    return handler.call(arrival.message, *rows)


def _read_sub(staging: StagingArea, table: BoundTable, base: bytes, subkey: str) -> Any:
    return _read(staging, table, base + subkey.encode())


def _read(staging: StagingArea, table: BoundTable, local: bytes) -> Any:
    staged = staging.get(table.name, local)
    if staged is not None:
        return staged.row
    data = staging.store.get(table.name, local)
    if data is None:
        return None
    try:
        row = decode_row(table.codec, data)
    except (Undecodable, UnknownSchema) as error:
        raise staging.unreadable.row(table.name, local, error) from error
    if staging.unreadable.found:
        staging.unreadable.forget(table.name, local)
    return row


def _end_span(arrival: Arrival, outcome: str = "succeeded") -> None:
    """The attempt that is under way has ended, and has a span."""
    span, arrival.span = arrival.span, None
    if span is not None:
        span.attributes["steadfaust.outcome"] = outcome
        span.end()
