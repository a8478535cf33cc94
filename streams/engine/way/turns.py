"""How long handlers hold the worker: the time of each turn, in which nothing else of it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from time import perf_counter
from typing import Any, Final, TypeVar

import structlog

from streams.engine.staging.arrival import Arrival, Counters
from streams.errors import ends_process
from streams.escapes import Escaped

log: Final = structlog.get_logger(__name__)
T = TypeVar("T")

#: The log names a turn that takes longer, in seconds. A worker is given up after some seconds of silence.
HELD: Final = 0.5
#: How long the log says nothing more of a handler that it has named, in seconds.
QUIET: Final = 10.0


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
