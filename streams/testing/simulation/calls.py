"""Records the calls of handlers in a run, with their arguments and results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from streams.escapes import ordinary
from streams.logs import HANDLED
from streams.model.choreography import AnyHandler, Choreography, Route
from streams.model.envelope import Envelope
from streams.model.message import Message
from streams.model.outcome import Outcome
from streams.ports import Clock
from streams.testing.simulation.machines import Process, running
from streams.testing.simulation.memory import Memory

#: A handler's name, and the identity of a message.
Place = tuple[str, bytes]


@dataclass(slots=True)
class Call:
    """One call of a handler with a message.

    Attributes:
        at: time of the call, in seconds since the run began.
        machine: name of the machine.
        rows: the rows passed to the handler, by parameter, except `any` rows.
        named: other recorded arguments by name, which is only the envelope.
        times: the times that the handler has read from its clock.
        counts: whether the lane was not fenced yet when the call ended; otherwise, nothing is committed.
        outcome, error: the result.
        is_given_up: whether `on_give_up` was called instead of the handler, after the last attempt.
    """

    handler: str
    message: Message
    envelope: Envelope
    at: float
    machine: str
    rows: Mapping[str, Any]
    named: Mapping[str, Any]
    times: list[float] = field(default_factory=list)
    counts: bool = True
    outcome: Outcome | None = None
    error: Exception | None = None
    is_given_up: bool = False

    @property
    def place(self) -> Place:
        """The handler's name and the message's identity."""
        return self.handler, self.envelope.identity


_call: ContextVar[Call | None] = ContextVar("call", default=None)


class CallClock:
    """The clock that handlers get. It records the times it returns; a repeated call gets them again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.repeated: Iterator[float] | None = None
        self._last = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        if self.repeated is not None:
            self._last = next(self.repeated, self._last)
            return self._last
        now = self._clock.now()
        if (call := _call.get()) is not None:
            call.times.append(now)
        return now

    async def sleep(self, seconds: float) -> None:
        """Wait, except in a repeated call."""
        if self.repeated is None:
            await self._clock.sleep(seconds)


class Calls:
    """The calls of a run, in the order in which they ended. Only the handlers in its wiring are recorded."""

    def __init__(self, now: Callable[[], float], lane_is_current: Callable[[Process, bytes], bool]) -> None:
        self.ended: list[Call] = []
        self._now = now
        self._lane_is_current = lane_is_current
        self._memory: Memory | None = None

    def watched(self, wiring: Choreography) -> list[Route]:
        """The routes of a wiring, with handlers that record their calls."""
        functions = [
            f for each in wiring.handlers() for f in (each.function, each.on_give_up) if f is not None
        ]
        self._memory = Memory(functions)
        handlers = {each.name: self._watched(each) for each in wiring.handlers()}
        return [
            Route(route.message, tuple(handlers[each.name] for each in route.handlers), route.inbox)
            for route in wiring.routes.values()
        ]

    def enter(self, process: object) -> None:
        """Put the global variables of this process in place."""
        if self._memory is not None:
            self._memory.enter(process)

    def leave(self) -> None:
        """Restore the original global variables."""
        if self._memory is not None:
            self._memory.leave()

    def effective(self, logged: Collection[bytes], dead: Collection[Place]) -> list[Call]:
        """The calls that took effect, in order: for each handler and message, the last successful call in a
        lane that was not fenced. Earlier calls were rolled back. Also left out are calls with `dead` letters,
        and with messages that are not `logged`, because the transaction that sent them was aborted.
        """
        last = {
            call.place: call
            for call in self.ended
            if call.counts and call.outcome is not None and call.place[1] in logged
            and call.place not in dead and ("", call.place[1]) not in dead
        }  # fmt: skip
        return [call for call in self.ended if last.get(call.place) is call]

    def _watched(self, handler: AnyHandler) -> AnyHandler:
        watched = copy(handler)
        give_up = handler.on_give_up
        watched.function = self._noting(handler)
        if give_up is not None:

            def on_give_up(message: Message, error: Exception) -> Outcome:
                with self._calling(handler, message, (), {}) as call:
                    call.is_given_up = True
                    call.outcome = give_up(message, error)
                return call.outcome

            watched.on_give_up = on_give_up
        return watched

    def _noting(self, handler: AnyHandler) -> Callable[..., Any]:
        function = handler.function
        if handler.is_async:

            @wraps(function)
            async def noted(message: Message, *rows: Any, **named: Any) -> Any:
                with self._calling(handler, message, rows, named) as call:
                    process = running()
                    call.outcome = await Stepped(
                        function(message, *rows, **named), lambda: self.enter(process)
                    )
                return call.outcome
        else:

            @wraps(function)
            def noted(message: Message, *rows: Any, **named: Any) -> Any:
                with self._calling(handler, message, rows, named) as call:
                    call.outcome = function(message, *rows, **named)
                return call.outcome

        return noted

    @contextmanager
    def _calling(
        self, handler: AnyHandler, message: Message, rows: Sequence[Any], named: Mapping[str, Any]
    ) -> Iterator[Call]:
        process, arrival = running(), HANDLED.get()
        envelope: Envelope | None = getattr(arrival, "envelope", None)
        if process is None or envelope is None:
            raise RuntimeError(f"{handler.name} is called outside of a lane: nobody knows for which message")
        given = {n: r for (n, of), r in zip(handler.rows.items(), rows, strict=False) if not of.any}
        call = Call(
            handler.name, message, envelope, self._now(), process.machine.name, given,
            {name: each for name, each in named.items() if name == "envelope"},
        )  # fmt: skip
        self.enter(process)
        token = _call.set(call)
        try:
            yield call
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            call.error = ordinary(error)
            raise
        finally:
            _call.reset(token)
            call.counts = self._lane_is_current(process, message.key.encode())
            self.ended.append(call)


class Stepped:
    """Awaits `inner`, and calls `goes_on` before each of its steps."""

    def __init__(self, inner: Any, goes_on: Callable[[], None]) -> None:
        self._inner = inner
        self._goes_on = goes_on

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Generator[Any, Any, Any] = self._inner.__await__()
        sent: Any = None
        error: BaseException | None = None
        while True:
            self._goes_on()
            try:
                waits = steps.send(sent) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            try:
                sent = yield waits
            except BaseException as thrown:  # noqa: BLE001 - it is the inner one's to handle
                error = thrown
