"""A handler sees a message: its outcome is staged, or its failure is decided on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import perf_counter
from typing import Any

from streams.errors import HandlerFailed, StoreFailed, TransientError
from streams.lane.loopback import Loopback
from streams.lane.rows import RowReader, call
from streams.lane.spans import LaneSpans
from streams.lane.turns import Timed, Turns
from streams.logs import HANDLED
from streams.model.application import BoundHandler
from streams.ports import Clock
from streams.retry.admit import may_run, requeue_by_order_key
from streams.retry.failures import failed, succeeded
from streams.retry.gate import UNASKED
from streams.retry.waiting import Waiting
from streams.staging.arrival import Arrival, Attempt
from streams.staging.measures import Distribution
from streams.staging.outcomes import OutcomeWriter
from streams.staging.payloads import NeedsUpload, Payloads, Unfinished, Uploads
from streams.staging.sequences import Sequences


class AttemptRunner:
    """Runs the handlers of a message, one after the other."""

    def __init__(
        self,
        waiting: Waiting,
        rows: RowReader,
        writer: OutcomeWriter,
        payloads: Payloads,
        sequences: Sequences,
        clock: Clock,
        spans: LaneSpans | None = None,
        loopback: Loopback | None = None,
    ) -> None:
        """With `spans`, attempts at messages of traces that are recorded have each its span. Without
        `loopback` all that the lane sends to itself is handled when it has read it.
        """
        self._loopback = loopback
        self._waiting = waiting
        self._gates = waiting.gates
        self._rows = rows
        self._writer = writer
        self._payloads = payloads
        self._sequences = sequences
        self._clock = clock
        self._spans = spans
        self._counters = writer.counters
        self._turns = Turns(writer.counters)

    def run(self, arrival: Arrival, now: float) -> Unfinished | None:
        """Run the handlers at once, up to one whose outcome has a payload that is to be written first. Where
        nothing waits and nothing fails, a message needs no attempt of its own: see `_try`. Epoch seconds.
        """
        HANDLED.set(arrival)
        if self._spans is not None and arrival.handlers:
            self._spans.arrived(arrival)
        began = perf_counter()
        for handler, inbox_key in arrival.handlers:
            gate = self._gates[handler.name]
            attempt: Attempt | None = None
            measured: Distribution | None = None
            try:
                if gate.clear and arrival.error is None:
                    if arrival.trace is not None:
                        arrival.span = arrival.trace.begin(handler.name, arrival.attempts + 1)
                    try:
                        outcome = call(self._rows, arrival, handler)
                        self._writer.stage(arrival, handler, outcome, inbox_key, now)
                        gate.succeeded += 1
                        if gate.measures is not None:
                            measured = gate.measures.succeeded
                        if arrival.span is not None:
                            _end_span(arrival)
                    except (HandlerFailed, StoreFailed, NeedsUpload):  # see `_try`
                        raise
                    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - logged and decided on
                        attempt = self._after_failure(arrival, handler, inbox_key, error, began)
                else:
                    attempt = self._admitted(arrival, handler, inbox_key)
                if attempt is not None:
                    _run_to_end(self._try(attempt, None))
            except NeedsUpload as upload:
                names = [each.name for each, _ in arrival.handlers]
                arrival.handlers = arrival.handlers[names.index(handler.name) :]
                attempt = attempt or Attempt(arrival, handler, inbox_key, UNASKED, arrival.attempts)
                arrival.span = None  # it begins again
                HANDLED.set(None)
                return Unfinished(attempt, upload.size)
            ended = self._turns.ended(handler.name, arrival, began)
            if measured is not None:
                measured.add(ended - began)
            began = ended
        HANDLED.set(None)
        self._done(arrival)
        return None

    async def run_in_background(self, arrival: Arrival, unfinished: Unfinished | None = None) -> None:
        """Run the handlers, and fetch and write payloads. The first one goes on as `unfinished`."""
        HANDLED.set(arrival)
        if self._spans is not None:
            self._spans.arrived(arrival)
        for handler, inbox_key in arrival.handlers:
            gate = self._gates[handler.name]
            gate.under_way += 1
            if unfinished is not None:
                attempt: Attempt | None = unfinished.attempt
                unfinished = None
            else:
                attempt = self._admitted(arrival, handler, inbox_key)
            if attempt is not None:
                await self._try(attempt, ())
            gate.under_way -= 1
        HANDLED.set(None)
        self._done(arrival)

    def _admitted(self, arrival: Arrival, handler: BoundHandler, inbox_key: bytes | None) -> Attempt | None:
        """An attempt that may be made now; None: the message waits, or was given up."""
        attempt = Attempt(arrival, handler, inbox_key, UNASKED, arrival.attempts)
        if self._gates[handler.name].clear and arrival.error is None:
            return attempt
        return attempt if may_run(self._waiting, attempt, self._clock.now()) else None

    async def _try(self, attempt: Attempt, uploads: Uploads) -> None:
        """Until the handler has succeeded, or the message waits or is given up. Without `uploads` nothing of
        it takes time, and NeedsUpload is raised where something would.
        """
        arrival = attempt.arrival
        while True:
            began = perf_counter()
            if arrival.trace is not None:
                arrival.span = arrival.trace.begin(attempt.handler.name, attempt.attempts + 1)
            try:
                if arrival.message is None and not await self._fetch(attempt):
                    arrival.span = None  # nothing was tried
                    return
                await self._call_and_stage(attempt, uploads)
            except (HandlerFailed, StoreFailed, NeedsUpload):  # no message is to blame
                raise
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task() if uploads is not None else None
                if task is not None and task.cancelling():
                    if arrival.span is not None:
                        arrival.span.failed(error)
                        _end_span(arrival, "cancelled")
                    raise
                if not self._is_tried_again(attempt, error, began):
                    return
            else:
                self._succeeded(attempt, began)
                return

    async def _call_and_stage(self, attempt: Attempt, uploads: Uploads) -> None:
        arrival, handler = attempt.arrival, attempt.handler
        began = perf_counter()
        outcome = call(self._rows, arrival, handler)
        if handler.is_async:
            outcome = await Timed(outcome, self._turns, handler.name, arrival)
            began = perf_counter()
        now = self._clock.now()
        prepared = self._writer.stage(arrival, handler, outcome, attempt.inbox_key, now, uploads)
        if uploads is not None:
            self._turns.ended(handler.name, arrival, began)
        if prepared is not None:
            await self._payloads.write(prepared.uploads)
            if removed := self._writer.put_prepared(arrival.entry, prepared):
                self._writer.append(arrival.entry.partition, removed)

    def _after_failure(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        error: BaseException,
        began: float,
    ) -> Attempt | None:
        """What a message that ran straight through goes on as, if it is tried again at once."""
        attempt = Attempt(arrival, handler, inbox_key, UNASKED, arrival.attempts)
        return attempt if self._is_tried_again(attempt, error, began) else None

    async def _fetch(self, attempt: Attempt) -> bool:
        """Give a message its payload. False: now that it has it, it waits behind others of its order."""
        await self._payloads.fetch(attempt.arrival)
        return not requeue_by_order_key(self._waiting, attempt, self._clock.now())

    def _is_tried_again(self, attempt: Attempt, error: BaseException, began: float) -> bool:
        attempt.attempts += 1
        measures = self._gates[attempt.handler.name].measures
        if measures is not None:
            measures.failed.add(perf_counter() - began)
        if not isinstance(error, Exception):
            error = TransientError("something that it waited for was cancelled")
        again = failed(self._waiting, attempt, error, self._clock.now())
        if attempt.arrival.span is not None:
            _end_span(attempt.arrival, "failed")
        return again

    def _succeeded(self, attempt: Attempt, began: float) -> None:
        gate = self._gates[attempt.handler.name]
        if gate.measures is not None:
            gate.measures.succeeded.add(perf_counter() - began)
        if attempt.permit is UNASKED:
            gate.succeeded += 1
        else:
            succeeded(self._waiting, attempt, self._clock.now())
        if attempt.arrival.span is not None:
            _end_span(attempt.arrival)

    def _done(self, arrival: Arrival) -> None:
        if self._loopback is not None:
            self._loopback.came(arrival)
            if arrival.entry.looped is not None:
                self._loopback.run(arrival.entry, self._clock.now())
        self._sequences.finished(arrival.entry)
        if arrival.handlers:
            self._counters.handled += 1


def _end_span(arrival: Arrival, outcome: str = "succeeded") -> None:
    """The attempt that is under way has ended, and has a span."""
    span, arrival.span = arrival.span, None
    if span is not None:
        span.attributes["steadfaust.outcome"] = outcome
        span.end()


def _run_to_end(attempt: Coroutine[Any, Any, None]) -> None:
    """Run what never waits."""
    try:
        attempt.send(None)
    except StopIteration:
        return
    raise HandlerFailed("a sync handler's attempt waits for something")
