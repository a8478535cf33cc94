"""A clock that a test moves by hand."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sized
from itertools import count

#: How often other tasks get to run after a sleeper was woken, so that a chain of sleeps is followed.
_TURNS = 20


class ManualClock:
    """Stands still until it is advanced. `start` is in seconds since the epoch."""

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
        """Wait until the clock has been advanced by so much."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), waiter))
        await waiter

    def set(self, now: float) -> None:
        """Jump without waking anyone, backwards too, as a corrected system clock does."""
        self._now = now

    async def advance(self, seconds: float) -> None:
        """Move on, waking sleepers in order, each at its own time."""
        end = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, waiter = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            if not waiter.done():
                waiter.set_result(None)
                await _settle()
        self._now = end
        await _settle()


async def _settle() -> None:
    # What waits for its turn, where the loop tells. Most steps wake nobody, and idle turns take time.
    waiting: Sized = getattr(asyncio.get_running_loop(), "_ready", (None,))
    for _ in range(_TURNS):
        await asyncio.sleep(0)
        if not waiting:
            return
