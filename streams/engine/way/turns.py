"""Report handlers that block the worker's event loop: nothing else runs during a handler's turn."""

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

#: Longer turns are logged, in seconds. A worker that is silent for some seconds counts as dead.
HELD: Final = 0.5
#: Minimum seconds between two log lines about the same handler.
QUIET: Final = 10.0


class Turns:
    """Reports turns that were too long: in the log, at a limited rate, and as the counter `held_loop`."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._logged: dict[str, float] = {}

    def ended(self, handler: str, arrival: Arrival, began: float, now: float) -> None:
        """Report a turn of a handler if it was too long. Times are from `perf_counter`."""
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
    """Wraps an async handler's call, and measures each stretch between two waits as a turn."""

    def __init__(self, call: Coroutine[Any, Any, T], turns: Turns, handler: str, arrival: Arrival) -> None:
        self._call = call
        self._turns = turns
        self._handler = handler
        self._arrival = arrival

    def __await__(self) -> Generator[Any, Any, Any]:
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
