"""Call handlers with a message, and stage their outcomes. After an error, `way.failure` decides what follows.

`run_handlers` takes a message through its handlers. It stops before an attempt that takes time, because the
handler is async or a payload is fetched or written. `run_in_background` makes that attempt and continues.

After an error the handler is by default called twice more at once; `Attempt.tries` counts calls in memory. If
one of these succeeds, its outcome goes into the entry like that of a first call. If the worker is killed
before the commit, the count is lost: the lane reads the message again, and each handler starts over. Later
retries wait as a row, which is committed and has the count.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from streams.engine.staging.area import StagingArea
from streams.engine.staging.arrival import Arrival
from streams.engine.staging.payloads import NeedsUpload, Payloads
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.waiting import Waiting
from streams.engine.way.failure import settle_failed
from streams.engine.way.permission import may_go_on, may_run
from streams.engine.way.spans import LaneSpans
from streams.engine.way.turns import Timed, Turns
from streams.errors import HandlerFailed, StoreFailed, ends_process
from streams.escapes import calling, cancelled, original
from streams.logs import handling
from streams.model.bound import BoundHandler
from streams.ports import Clock


class Attempts:
    """Calls the handlers of a message one after the other."""

    def __init__(
        self, waiting: Waiting, payloads: Payloads, clock: Clock, spans: LaneSpans | None = None
    ) -> None:
        """With `spans`, each attempt at a message of a recorded trace gets a span."""
        self.waiting = waiting
        self.payloads = payloads
        self.clock = clock
        self.spans = spans
        self._gates = waiting.gates
        self._outcomes = waiting.outcomes
        self._staging = waiting.staging
        self.turns = Turns(waiting.staging.counters)
        #: True once the lane cancels its background tasks. While False, any cancellation is a handler's own.
        self.closed = False

    def run_handlers(self, arrival: Arrival, now: float, *, in_background: bool = False) -> bool:
        """Run the handlers of a message in order, each until it has decided. False: the next attempt takes
        time, so `run_in_background` must make it. That checks the gate again just before the attempt, because
        an operator may have paused the handler. `now` in epoch seconds.

        Log lines have the ids of the message until the caller calls `handling(None)`, once for many messages.

        Raises HandlerFailed or StoreFailed.
        """
        handling(arrival)
        began = perf_counter()
        while arrival.at < len(arrival.handlers):
            handler, inbox_key = arrival.handlers[arrival.at]
            uploads = arrival.attempt.upload > 0
            takes_time = handler.is_async or arrival.message is None or uploads
            if takes_time and arrival.error is None and not in_background:
                return False
            gate = self._gates[handler.name]
            clear = gate.clear and arrival.error is None
            may_try = clear or uploads or may_run(self.waiting, arrival, now)
            if may_try and takes_time:
                return False
            tried = began if clear else perf_counter()
            while may_try:
                error = self.once(arrival, handler, inbox_key, now)
                ended = perf_counter()
                if isinstance(error, NeedsUpload):  # the attempt begins again
                    arrival.attempt.upload, arrival.attempt.span = error.size, None
                    return False
                if error is not None or not clear:
                    now = self.clock.now()
                may_try = self._settle(arrival, handler, gate, error, ended - tried, now)
                # The time to settle an error does not count for the next attempt.
                tried = ended if error is None else perf_counter()
            self.turns.ended(handler.name, arrival, began, tried)
            began = tried
            arrival.next_handler()
        return True

    async def run_in_background(self, arrival: Arrival) -> None:
        """Continue where `run_handlers` stopped, until all handlers of the message have decided."""
        while not self.run_handlers(arrival, self.clock.now(), in_background=True):
            gate = self._gates[arrival.handler.name]
            gate.under_way += 1
            while await self._once_in_background(arrival, gate):
                pass
            gate.under_way -= 1
            arrival.next_handler()
        handling(None)

    def once(
        self, arrival: Arrival, handler: BoundHandler, inbox_key: bytes | None, now: float
    ) -> BaseException | None:
        """Call a sync handler and stage its outcome. Returns the error that was raised, or None. Raises
        errors that are not the message's fault: HandlerFailed, StoreFailed, and those that end the process.
        """
        if self.spans is not None:
            self._begin_span(self.spans, arrival, handler)
        try:
            outcome = call(self._staging, arrival, handler)
            self._outcomes.stage(arrival, handler, outcome, inbox_key, now)
        except (HandlerFailed, StoreFailed):  # no message is to blame
            raise
        except BaseException as error:
            if ends_process(error):
                raise
            return error  # logged and decided on
        return None

    async def _once_in_background(self, arrival: Arrival, gate: HandlerGate) -> bool:
        """Fetch the payload of a message if it travels by reference, call the handler, await it if it is
        async, and stage its outcome. True: the handler tries again at once.
        """
        tried, error = perf_counter(), None
        if self.spans is not None:
            self._begin_span(self.spans, arrival, arrival.handler)
        try:
            if arrival.message is None:
                await self.payloads.fetch(arrival)
                if not may_go_on(self.waiting, arrival, self.clock.now()):
                    arrival.attempt.span = None  # nothing was tried
                    return False
            await self._call_and_stage(arrival, arrival.handler)
        except (HandlerFailed, StoreFailed):  # no message is to blame
            raise
        except (Exception, asyncio.CancelledError) as raised:
            if self.closed:
                if arrival.attempt.span is not None:
                    arrival.attempt.span.failed(raised)
                self._end_span(arrival, "cancelled")
                raise
            error = raised
        seconds, handler = perf_counter() - tried, arrival.handler
        again = self._settle(arrival, handler, gate, error, seconds, self.clock.now())
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await self._forget_cancelling(task)
        return again

    async def _forget_cancelling(self, task: asyncio.Task[Any]) -> None:
        """Undo a handler's cancellation of its own task, which has later messages of the key to run."""
        while task.cancelling():
            task.uncancel()
        try:
            await asyncio.sleep(0)  # a cancellation that is still pending is raised here
        except asyncio.CancelledError:
            if self.closed:
                raise

    async def _call_and_stage(self, arrival: Arrival, handler: BoundHandler) -> None:
        """Call a handler, await it if it is async, write its outcome's payloads, and stage the outcome."""
        began = perf_counter()
        outcome: Any = calling(call, self._staging, arrival, handler)
        if handler.is_async:
            outcome = await Timed(outcome, self.turns, handler.name, arrival)
            began = perf_counter()
        now = self.clock.now()
        prepared = calling(self._outcomes.stage, arrival, handler, outcome, arrival.inbox_key, now, ())
        self.turns.ended(handler.name, arrival, began, perf_counter())
        if prepared is not None:
            await self.payloads.write(prepared.uploads)
            if removed := self._outcomes.put_prepared(arrival.entry, prepared):
                self._staging.append(arrival.entry.partition, removed)

    def _begin_span(self, spans: LaneSpans, arrival: Arrival, handler: BoundHandler) -> None:
        attempt = arrival.attempt
        attempt.span = spans.begin_attempt(arrival, handler.name, attempt.tries + 1)

    def _end_span(self, arrival: Arrival, outcome: str) -> None:
        attempt = arrival.attempt
        if attempt.span is not None:
            attempt.span.attributes["steadfaust.outcome"] = outcome
            attempt.span.end()
            attempt.span = None

    def _settle(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        gate: HandlerGate,
        error: BaseException | None,
        seconds: float,
        now: float,
    ) -> bool:
        """Settle an attempt that ended with `error`, or succeeded if that is None. True: the handler tries
        again at once. False after an error: a waiting row, a dead letter or a reply is staged.
        """
        if error is None:
            self.waiting.succeeded(arrival, gate, seconds, now)
            self._end_span(arrival, "succeeded")
            return False
        arrival.attempt.tries += 1
        if gate.measures is not None:
            gate.measures.failed.add(seconds)
        raised = original(error)
        if isinstance(raised, asyncio.CancelledError):
            raised = cancelled(raised)
        again = settle_failed(self.waiting, arrival, handler, gate, raised, now)
        self._end_span(arrival, "failed")
        return again


def call(staging: StagingArea, arrival: Arrival, handler: BoundHandler) -> Any:
    """Call a handler with a message and the rows that it asks for. Returns its outcome; an async handler's
    must be awaited. Raises RowUnreadable or RowSchemaUnknown, and what the handler raises.
    """
    rows: list[Any] = []
    if handler.rows:
        rows = staging.rows_for(handler, arrival.entry.prefix + arrival.row_key(), arrival.message)
    if handler.wants_envelope:
        return handler.call(arrival.message, *rows, envelope=arrival.envelope)
    if len(rows) == 1:  # the common case, without unpacking a list
        return handler.call(arrival.message, rows[0])
    return handler.call(arrival.message, *rows)
