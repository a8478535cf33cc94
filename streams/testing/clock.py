"""A clock that a test moves by hand."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sized
from itertools import count

#: How often other tasks get to run after a sleeper was woken: as long as one of them is ready, but one that
#: is always ready does not hold up the clock.
_TURNS = 1000


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
        heapq.heappush(self._sleepers, (self.now() + seconds, next(self._order), waiter))
        self._changed()
        await waiter

    def _changed(self) -> None:
        """There is another sleeper."""

    def set(self, now: float) -> None:
        """Jump without waking anyone, backwards too, as a corrected system clock does. Sleepers wait on for
        as long as they would have.
        """
        by = now - self.now()
        self._sleepers = [(due + by, order, waiter) for due, order, waiter in self._sleepers]
        self._pass_to(now)

    def _pass_to(self, now: float) -> None:
        self._now = now

    async def advance(self, seconds: float) -> None:
        """Move on, waking sleepers in order, each at its own time."""
        end = self.now() + seconds
        while (due := self._wake_first(end)) is not None:
            self._pass_to(max(self.now(), due))
            await _settle()
        self._pass_to(end)
        await _settle()

    def _wake_first(self, until: float) -> float | None:
        """Wake the sleeper that is due first, if that is by then; returns when it was due."""
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)
                return due
        return None


async def _settle() -> None:
    # What waits for its turn, where the loop tells. Most steps wake nobody, and idle turns take time.
    waiting: Sized = getattr(asyncio.get_running_loop(), "_ready", (None,))
    for _ in range(_TURNS):
        await asyncio.sleep(0)
        if not waiting:
            return
