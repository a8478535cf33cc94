"""Bounds in bytes: on what is under way at a time, and on what is kept at hand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import NamedTuple

from cachetools import LRUCache

#: What a cached payload takes beside its bytes: its key, of which the longest are names of objects, and
#: objects of Python.
OVERHEAD = 2048


class _Waiter(NamedTuple):
    amount: int
    turn: asyncio.Future[None]


class BytesInFlight:
    """At most `limit` bytes at a time over all who share it; first come, first served.

    What is larger than the limit counts as all of it, so that it goes alone instead of waiting for ever. A
    large one that waits lets none behind it pass, so that it does not wait for ever either.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._waiting: deque[_Waiter] = deque()

    @property
    def waiters(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[None]:
        """Hold so many bytes for the length of an `async with`."""
        amount = min(size, self.limit)
        await self._acquire(amount)
        try:
            yield
        finally:
            self._release(amount)

    async def _acquire(self, amount: int) -> None:
        if not self._waiting and self.held + amount <= self.limit:
            self.held += amount
            return
        waiter = _Waiter(amount, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self._wake()  # it may have been the large one that held back the others
            else:
                self._release(amount)  # its turn came together with the cancellation
            raise

    def _release(self, amount: int) -> None:
        self.held -= amount
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.held + self._waiting[0].amount <= self.limit:
            waiter = self._waiting.popleft()
            self.held += waiter.amount
            if not waiter.turn.done():
                waiter.turn.set_result(None)


class BytesCache(LRUCache[Hashable, bytes]):
    """Byte strings by key, at most `limit` bytes of them; those used longest ago go first. Each counts
    OVERHEAD bytes more than it has, so that many small ones are bounded too.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit, getsizeof=_counted)

    def put(self, key: Hashable, data: bytes) -> None:
        """Keep the bytes, unless they alone are over the limit."""
        if _counted(data) <= self.maxsize:
            self[key] = data
        else:
            self.pop(key, None)


def _counted(data: bytes) -> int:
    return len(data) + OVERHEAD
