"""Handlers' turns. While one runs, all else of the worker stands still: the log names one that takes long."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from time import perf_counter
from typing import Any, TypeVar

import structlog

from streams.staging.arrival import Arrival, Counters

log = structlog.get_logger(__name__)
T = TypeVar("T")

#: The log names a turn that takes longer, in seconds. A worker is given up after some seconds of silence.
HELD = 0.5
#: How long the log says nothing more of a handler that it has named, in seconds.
QUIET = 10.0


class Turns:
    """Shows turns that were too long: in the log, throttled, and as `held_loop` in the lane's counters."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._logged: dict[str, float] = {}

    def ended(self, handler: str, arrival: Arrival, began: float) -> float:
        """A turn of a handler has ended now; returns when that is. `began` as `perf_counter` has it."""
        now = perf_counter()
        if now - began > HELD:
            self._log_long_turn(handler, arrival, now, now - began)
        return now

    def _log_long_turn(self, handler: str, arrival: Arrival, now: float, seconds: float) -> None:
        self._counters.held_loop += 1
        if now - self._logged.get(handler, -QUIET) < QUIET:
            return
        self._logged[handler] = now
        log.warning(
            "handler_held_loop",
            handler=handler,
            seconds=round(seconds, 3),
            key_bytes=len(arrival.record.key or b""),
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
            finally:
                self._turns.ended(self._handler, self._arrival, began)
            try:
                given, step = (yield waits_for), steps.send
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # noqa: BLE001 - thrown into the call, as it would have been
                given, step = error, steps.throw
