"""A clock that a test moves by hand."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sized
from itertools import count

#: Maximum event loop turns for other tasks after a wake-up. The clock waits while tasks are ready, but a task
#: that is always ready cannot block it.
_TURNS = 1000


class ManualClock:
    """A clock that stands still until it is advanced. `start` is in seconds since the epoch."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._now

    @property
    def sleeping(self) -> int:
        """How many tasks are waiting for the clock."""
        return sum(not waiter.done() for _, _, waiter in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has advanced by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now() + seconds, next(self._order), waiter))
        self._changed()
        await waiter

    def _changed(self) -> None:
        """Called after a sleeper was added."""

    def set(self, now: float) -> None:
        """Change the time, also backwards, as a corrected system clock does. No sleeper wakes: each still
        waits for the rest of its time.
        """
        by = now - self.now()
        self._sleepers = [(due + by, order, waiter) for due, order, waiter in self._sleepers]
        self._pass_to(now)

    def _pass_to(self, now: float) -> None:
        self._now = now

    async def advance(self, seconds: float) -> None:
        """Advance the clock and wake sleepers in order, each at its own time."""
        end = self.now() + seconds
        while (due := self._wake_first(end)) is not None:
            self._pass_to(max(self.now(), due))
            await _settle()
        self._pass_to(end)
        await _settle()

    def _wake_first(self, until: float) -> float | None:
        """Wake the first sleeper that is due by `until`, and return its due time; None if there is none."""
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)
                return due
        return None


async def _settle() -> None:
    # The loop's ready callbacks, if it exposes them. They end the loop early, because idle turns take time.
    waiting: Sized = getattr(asyncio.get_running_loop(), "_ready", (None,))
    for _ in range(_TURNS):
        await asyncio.sleep(0)
        if not waiting:
            return
