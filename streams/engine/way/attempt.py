"""A handler sees a message: its outcome is staged, or `waiting.decisions` decides what follows its error.

`run_handlers` takes a message through its handlers. It stops at an attempt that takes time, because the
handler is async or a payload is fetched or written: `run_in_background` makes that one and goes on.

After an error the handler is called twice more at once, by default; `Arrival.attempts` counts in memory. If
it succeeds then, its outcome goes into the entry as if it were the first call. If the worker is killed before
the commit, nothing of that is left: the lane reads the message again, and begins with its first call. A later
retry waits as a row, which is committed and has the count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from time import perf_counter
from typing import Any, Final, TypeVar

import structlog

from streams.engine.staging.area import StagingArea
from streams.engine.staging.arrival import Arrival, Counters
from streams.engine.staging.payloads import NeedsUpload, Payloads
from streams.engine.waiting.decisions import may_go_on, may_run, settle_failed
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.waiting import Waiting
from streams.engine.way.spans import LaneSpans
from streams.errors import (
    HandlerFailed,
    StoreFailed,
    Undecodable,
    UnknownSchema,
    ends_process,
)
from streams.escapes import Escaped, calling, cancelled, original
from streams.logs import handling
from streams.model.bound import BoundHandler, BoundTable
from streams.model.codecs import decode_row
from streams.ports import Clock

log: Final = structlog.get_logger(__name__)
T = TypeVar("T")

#: The log names a turn that takes longer, in seconds. A worker is given up after some seconds of silence.
HELD: Final = 0.5
#: How long the log says nothing more of a handler that it has named, in seconds.
QUIET: Final = 10.0


class Attempts:
    """The way of a message through its handlers, one after the other."""

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
        self.turns = Turns(waiting.staging.counters)
        #: Set before the lane cancels what runs in the background: else a cancellation is a handler's own.
        self.closed = False

    def run_handlers(self, arrival: Arrival, now: float, *, in_background: bool = False) -> bool:
        """Run the handlers of a message in their order, each until it has decided. False: the attempt that
        comes now takes time, and `run_in_background` makes it. That asks the gate just before the attempt,
        because an operator may pause the handler until then. `now` in epoch seconds.

        Log lines have the ids of the message until the caller calls `handling(None)`, once for many messages.

        Raises HandlerFailed or StoreFailed.
        """
        if arrival.operation is not None:
            arrival.operation.carry_out(arrival, now)
        handling(arrival)
        began = perf_counter()
        while arrival.at < len(arrival.handlers):
            handler, inbox_key = arrival.handlers[arrival.at]
            takes_time = handler.is_async or arrival.message is None or arrival.upload > 0
            if takes_time and arrival.error is None and not in_background:
                return False
            gate = self._gates[handler.name]
            clear = gate.clear and arrival.error is None
            again = clear or arrival.upload > 0 or may_run(self.waiting, arrival, now)
            tried = began if clear else perf_counter()
            while again:
                if takes_time:
                    return False
                error = self.once(arrival, handler, inbox_key, now)
                ended = perf_counter()
                if isinstance(error, NeedsUpload):  # the attempt begins again
                    arrival.upload, arrival.span = error.size, None
                    return False
                if error is not None or not clear:
                    now = self.clock.now()
                again = self._settle(arrival, gate, error, ended - tried, now)
                # To settle an error is no part of the next attempt.
                tried = ended if error is None else perf_counter()
            self.turns.ended(handler.name, arrival, began, tried)
            began = tried
            arrival.next_handler()
        return True

    async def run_in_background(self, arrival: Arrival) -> None:
        """Go on where `run_handlers` has stopped, until all handlers of the message have decided."""
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
        """Call a sync handler and stage its outcome. Returns what was raised; raises what no message is to
        blame for.
        """
        self._begin_span(arrival, handler)
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
        """Fetch the payload of a message, if that is elsewhere, call the handler, await it if it is async,
        and stage its outcome. True: the handler tries again at once.
        """
        tried, error = perf_counter(), None
        self._begin_span(arrival, arrival.handler)
        try:
            if arrival.message is None:
                await self.payloads.fetch(arrival)
                if not may_go_on(self.waiting, arrival, self.clock.now()):
                    arrival.span = None  # nothing was tried
                    return False
            await self._call_and_stage(arrival, arrival.handler)
        except (HandlerFailed, StoreFailed):  # no message is to blame
            raise
        except (Exception, asyncio.CancelledError) as raised:
            if self.closed:
                if arrival.span is not None:
                    arrival.span.failed(raised)
                self._end_span(arrival, "cancelled")
                raise
            error = raised
        again = self._settle(arrival, gate, error, perf_counter() - tried, self.clock.now())
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await self._forget_cancelling(task)
        return again

    async def _forget_cancelling(self, task: asyncio.Task[Any]) -> None:
        """A handler has cancelled the task that runs it, which goes on with other messages of the key."""
        while task.cancelling():
            task.uncancel()
        try:
            await asyncio.sleep(0)  # where a cancellation comes that did not come yet
        except asyncio.CancelledError:
            if self.closed:
                raise

    async def _call_and_stage(self, arrival: Arrival, handler: BoundHandler) -> None:
        """Call a handler and await it if it is async, write the payloads of its outcome, and stage that."""
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

    def _begin_span(self, arrival: Arrival, handler: BoundHandler) -> None:
        if self.spans is not None:
            arrival.span = self.spans.begin_attempt(arrival, handler.name, arrival.attempts + 1)

    def _end_span(self, arrival: Arrival, outcome: str) -> None:
        if arrival.span is not None:
            arrival.span.attributes["steadfaust.outcome"] = outcome
            arrival.span.end()
            arrival.span = None

    def _settle(
        self, arrival: Arrival, gate: HandlerGate, error: BaseException | None, seconds: float, now: float
    ) -> bool:
        """Settle an attempt that ended with `error`; None: success. True: the handler tries again at once.
        False after an error: the message is a row that waits, or a dead letter, and the handler has decided.
        """
        if error is None:
            self.waiting.succeeded(arrival, gate, seconds, now)
            self._end_span(arrival, "succeeded")
            return False
        arrival.attempts += 1
        if gate.measures is not None:
            gate.measures.failed.add(seconds)
        raised = original(error)
        if isinstance(raised, asyncio.CancelledError):
            raised = cancelled(raised)
        again = settle_failed(self.waiting, arrival, raised, now)
        self._end_span(arrival, "failed")
        return again


def call(staging: StagingArea, arrival: Arrival, handler: BoundHandler) -> Any:
    """Call a handler with a message and the rows that it asks for: its outcome, or one to be awaited. Raises
    RowUnreadable or RowSchemaUnknown, and what the handler raises.
    """
    rows: list[Any] = []
    if handler.rows:
        base = arrival.entry.prefix + arrival.row_key()
        for _, table, subkey, any_row in handler.rows:
            if any_row:
                rows.append(partial(_read_sub, staging, table, base))
            else:
                local = base if subkey is None else base + subkey(arrival.message).encode()
                rows.append(_read(staging, table, local))
    if handler.wants_envelope:
        return handler.call(arrival.message, *rows, envelope=arrival.envelope)
    if len(rows) == 1:  # as most have: no arguments are put together
        return handler.call(arrival.message, rows[0])
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


class Turns:
    """Shows turns that were too long: in the log, throttled, and as `held_loop` in the lane's counters."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._logged: dict[str, float] = {}

    def ended(self, handler: str, arrival: Arrival, began: float, now: float) -> None:
        """A turn of a handler has ended. Times as `perf_counter` has them."""
        if now - began <= HELD:
            return
        self._counters.held_loop += 1
        if now - self._logged.get(handler, -QUIET) >= QUIET:
            self._logged[handler] = now
            log.warning(
                "handler_held_loop",
                handler=handler,
                seconds=round(now - began, 3),
                key_bytes=len(arrival.key),
                message_bytes=len(arrival.record.value or b""),
                action="nothing else of the worker ran meanwhile: split its work over several messages",
            )


class Timed:
    """An async handler's call to be awaited, of which each stretch between two waits is a turn."""

    def __init__(self, call: Coroutine[Any, Any, T], turns: Turns, handler: str, arrival: Arrival) -> None:
        self._call = call
        self._turns = turns
        self._handler = handler
        self._arrival = arrival

    def __await__(self) -> Generator[Any, Any, Any]:
        """As the call itself is awaited."""
        steps = self._call.__await__()
        step, given = steps.send, None
        while True:
            began = perf_counter()
            try:
                waits_for = step(given)
            except StopIteration as end:
                return end.value
            except (Exception, asyncio.CancelledError):
                raise
            except BaseException as error:
                if ends_process(error):
                    raise
                raise Escaped(error) from error
            finally:
                self._turns.ended(self._handler, self._arrival, began, perf_counter())
            try:
                given, step = (yield waits_for), steps.send
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # noqa: BLE001 - thrown into the call, as it would have been
                given, step = error, steps.throw
