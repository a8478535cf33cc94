"""The calls of handlers in a run: their arguments and answers."""

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
    """A handler is called with a message.

    Attributes:
        at: when, in seconds since the run began.
        machine: where.
        rows: those that it is given, by parameter; of `any` row nothing.
        named: what else it is given, by name: the envelope.
        times: what the clock has said to it.
        counts: whether its lane had not been fenced by then: else nothing of it is committed.
        outcome, error: what came of it.
        is_given_up: it is not the handler that answers: nobody tries the message any more.
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
        """The handler and the message that it is about."""
        return self.handler, self.envelope.identity


_call: ContextVar[Call | None] = ContextVar("call", default=None)


class CallClock:
    """The clock that handlers get: what it says is noted, and said again when the call is repeated."""

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
        """Wait; not when the call is repeated."""
        if self.repeated is None:
            await self._clock.sleep(seconds)


class Calls:
    """The calls of a run, in the order in which they ended. Only the functions of its wiring are watched."""

    def __init__(self, now: Callable[[], float], lane_is_current: Callable[[Process, bytes], bool]) -> None:
        self.ended: list[Call] = []
        self._now = now
        self._lane_is_current = lane_is_current
        self._memory: Memory | None = None

    def watched(self, wiring: Choreography) -> list[Route]:
        """The lines of a wiring, with handlers whose calls are noted."""
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
        """A process runs from now on."""
        if self._memory is not None:
            self._memory.enter(process)

    def leave(self) -> None:
        """No process runs any more."""
        if self._memory is not None:
            self._memory.leave()

    def effective(self, logged: Collection[bytes], dead: Collection[Place]) -> list[Call]:
        """The call that has taken effect for each handler and message, in order: the last one that succeeded
        in a lane that was not fenced. What was called before it was undone. So is all that was called with
        `dead` letters, and with messages whose identities are not `logged`: what sent them was undone.
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
    """Awaits something, and says before each of its steps that it goes on."""

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
