"""An event loop with simulated time, which passes only while everything waits."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from streams.testing.clock import ManualClock

#: First value of the simulated `time()`, in seconds; not 0, in case code uses 0 for "never".
_START = 1000.0
#: While callbacks are ready, sockets are polled once in this many turns.
_LOOK = 64


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An ordinary loop until `simulate` is called. From then on no wait takes real time: when no callback is
    ready and no socket is readable, the loop's time jumps to the next timer.

    So a timeout fires only when nothing that it guards can go on, however slow the machine is. While a thread
    of `run_in_executor` runs, real time passes, because its end cannot be predicted.
    """

    def __init__(self) -> None:
        self._simulated: float | None = None
        self._threads = self._turns = 0
        self._sockets = selectors.DefaultSelector()
        self._select = self._sockets.select
        self._sockets.select = self._pass_time  # type: ignore[method-assign]  # its waits are the loop's
        super().__init__(self._sockets)

    def simulate(self) -> None:
        """Switch to simulated time, for good. Call it before anything sets a timer."""
        if self._simulated is None:
            self._simulated = _START

    @property
    def is_simulated(self) -> bool:
        """Whether `simulate` was called."""
        return self._simulated is not None

    def time(self) -> float:
        """Seconds; real ones until `simulate` is called."""
        return super().time() if self._simulated is None else self._simulated

    def run_in_executor(  # type: ignore[override]  # typeshed has it as a coroutine's result
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` in a thread. The loop's time does not jump until it ends."""
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    async def shutdown_default_executor(
        self,
        timeout: float | None = None,  # noqa: ARG002 - as newer Pythons call it
    ) -> None:
        """Join the threads without the timeout of newer Pythons, which would expire at once."""
        self._threads += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._threads -= 1

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self._threads -= 1

    def _pass_time(self, timeout: float | None = None) -> Any:
        """Poll sockets for up to `timeout` seconds of the loop's time."""
        if self._simulated is None or timeout is None:
            return self._select(timeout)
        self._turns += 1
        looks = self._threads or not self._turns % _LOOK
        if timeout <= 0:
            return self._select(0) if looks else []
        # Beside the pipe by which threads wake the loop there are sockets only in some tests.
        if (looks or len(self._sockets.get_map()) > 1) and (found := self._select(0)):
            return found
        if not self._threads:
            self._simulated += timeout
            return []
        began = time.monotonic()
        found = self._select(timeout)
        self._simulated += min(timeout, time.monotonic() - began)
        return found


class LoopClock(ManualClock):
    """A clock that follows a simulated loop's time and can also be advanced on its own. Advancing it does not
    fire the loop's timers, such as those of readers that wait for records, so that skipping days is cheap.
    """

    def __init__(self, loop: SimulatedLoop, start: float = 1_700_000_000.0) -> None:
        super().__init__()
        self._loop = loop
        self._ahead = start - loop.time()
        self._bell: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._ahead + self._loop.time()

    def _pass_to(self, now: float) -> None:
        self._ahead = now - self._loop.time()

    async def advance(self, seconds: float) -> None:
        """Advance the clock and wake sleepers in order, each at its own time."""
        await super().advance(seconds)
        self._changed()

    def _changed(self) -> None:
        # Set the loop's timer for the first sleeper.
        if self._bell is not None:
            self._bell.cancel()
            self._bell = None
        if self._sleepers:
            self._bell = self._loop.call_later(max(0.0, self._sleepers[0][0] - self.now()), self._ring)

    def _ring(self) -> None:
        while self._wake_first(self.now()) is not None:
            pass
        self._changed()
