"""How late a worker's event loop is, and what it takes of its machine: a slow worker answers, and is slow."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic, process_time

import msgspec

#: Seconds between two looks at the clock, and for which they are kept.
TICK, SPAN = 0.25, 10.0
#: The share of that time for which the loop of a slow worker stands.
SLOW = 0.5
_STATM = Path("/proc/self/statm")


class PacePart(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's pace, over the last ten seconds.

    Attributes:
        late: seconds by which its event loop was late at most.
        stood: the share of the time in which it was late, 0 to 1.
        cpu: cores that the process took.
        memory: bytes that it has in memory; None where the system does not tell.
    """

    late: float = 0.0
    stood: float = 0.0
    cpu: float = 0.0
    memory: int | None = None

    @property
    def slow(self) -> bool:
        """Whether the loop stands for so long that everything of the worker is late."""
        return self.stood >= SLOW


class Pace:
    """Looks at the clock again and again: the loop is as late as the look is."""

    def __init__(
        self, clock: Callable[[], float] = monotonic, used: Callable[[], float] = process_time
    ) -> None:
        self._clock = clock
        self._used = used
        #: When each look was, how late it was, and the processor time until then.
        self._looks = deque([(clock(), 0.0, used())])

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            due = self._clock() + TICK
            await asyncio.sleep(TICK)
            self.look(due)

    def look(self, due: float) -> None:
        """Note how late it is, for what was due at a time."""
        now = self._clock()
        self._looks.append((now, max(0.0, now - due), self._used()))
        while now - self._looks[0][0] > SPAN and len(self._looks) > 2:
            self._looks.popleft()

    def part(self) -> PacePart:
        """The pace up to now."""
        (begun, _, used), *later = self._looks
        span = self._clock() - begun
        if not later or span <= 0:
            return PacePart(memory=memory())
        return PacePart(
            late=round(max(late for _, late, _ in later), 2),
            stood=round(min(1.0, sum(late for _, late, _ in later) / max(span, SPAN / 2)), 2),
            cpu=round((self._used() - used) / span, 2),
            memory=memory(),
        )


def memory() -> int | None:
    """Bytes of this process that are in memory."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # it is not Linux
        return None
