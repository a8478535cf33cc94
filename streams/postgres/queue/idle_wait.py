"""How the slots of a worker sleep: one looks now and then, the others sleep until they are woken."""

from __future__ import annotations

import asyncio
from collections import deque

#: Seconds until the first look after something was done: what a long transaction enqueued is seen soon.
_SHORTEST = 0.01


class IdleWait:
    """A place to sleep for the slots of one worker. `poll`: the longest time between two looks, in seconds.

    Attributes:
        wished: whether a notification is wished for, as far as is known.
    """

    def __init__(self, poll: float) -> None:
        self.wished = False
        self._poll = poll
        self._pause = _SHORTEST
        self._watched = False
        self._sleepers: deque[asyncio.Future[None]] = deque()

    async def sleep(self) -> None:
        """Wait until woken. The first slot to wait also wakes after a pause, longer each time."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        watches, self._watched = not self._watched, True
        try:
            if not watches:
                await sleeper
                return
            pause, self._pause = self._pause, min(self._pause * 2, self._poll)
            await asyncio.wait([sleeper], timeout=min(pause, self._poll))
        finally:
            if watches:
                self._watched = False
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    def found(self) -> None:
        """There was something to do: another one looks, too, and the next looks come soon."""
        self._pause = _SHORTEST
        if self._sleepers:
            self._wake()

    def notified(self) -> None:
        """A notification came; the next one has to be wished for."""
        self.wished = False
        self.found()

    def wake_all(self) -> None:
        """Everybody looks."""
        self.wished = False
        while self._sleepers:
            self._wake()

    def _wake(self) -> None:
        sleeper = self._sleepers.popleft()
        if not sleeper.done():
            sleeper.set_result(None)
