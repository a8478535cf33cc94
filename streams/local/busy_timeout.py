"""A bound on waiting for processes that follows the machine: seconds count as far as they got a processor.

A start that takes 2 s on an idle machine takes minutes beside forty others. Linux tells how long each thread
has run, and how long it was ready to run and had to wait for a processor; what was spent waiting does not
count. A process that waits for something else, or does nothing, uses its time up as ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

Say = Callable[[str], None]
"""Takes a line of progress."""

LONGEST = 10
"""How many times its seconds a bound lasts at most, however little of them counts."""

LOOK_EVERY = 0.5
"""Seconds between two looks at what processes have used: they have hundreds of threads."""

TELL_EVERY = 10.0
"""Seconds between two lines that say that something is still waited for."""


class Used(NamedTuple):
    """Seconds that threads have run, and that they were ready and waited for a processor."""

    ran: float
    waited: float


def used_by(pids: Iterable[int]) -> Used:
    """CPU seconds of these processes until now; nothing where the system does not say, or they ended."""
    ran = waited = 0
    for pid in pids:
        with suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError, ValueError):
                    running, waiting, *_ = map(int, (thread / "schedstat").read_text().split())
                    ran, waited = ran + running, waited + waiting
    return Used(ran / 1e9, waited / 1e9)


def counted(seconds: float, used: Used) -> float:
    """How much of a time counts in which processes have used so much; all of it where they never waited."""
    if used.waited <= 0:
        return seconds
    return seconds - min(seconds, used.waited) * (used.waited / (max(0.0, used.ran) + used.waited))


class BusyTimeout:
    """A wait of so many seconds that count. `over` is called again and again.

    Args:
        what: who is waited for, as in "broker 1".
        within: the seconds that count.
        pids: the processes that must get on.
        say: gets a line now and then: that the wait goes on, and how much of it counts.
    """

    def __init__(
        self,
        what: str,
        within: float,
        pids: Callable[[], Iterable[int]],
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[Iterable[int]], Used] = used_by,
    ) -> None:
        self.within = within
        self.spent = 0.0
        self.lasted = 0.0
        self._what = what
        self._pids = pids
        self._say = say
        self._clock = clock
        self._used = used
        self._began = self._looked = clock()
        self._before = used(pids())
        self._told = 0.0

    def over(self) -> bool:
        """Whether the time is up."""
        now = self._clock()
        if now - self._looked < min(LOOK_EVERY, self.within / 4):
            return False
        used = self._used(self._pids())
        # A thread that has ended takes its figures with it.
        more = Used(max(0.0, used.ran - self._before.ran), max(0.0, used.waited - self._before.waited))
        self.spent += counted(now - self._looked, more)
        self.lasted = now - self._began
        self._looked, self._before = now, used
        if self.lasted - self._told >= TELL_EVERY:
            self._told = self.lasted
            self._say(
                f"waiting for {self._what}: {self.lasted:.0f} s, of which {self.spent:.0f} s of"
                f" {self.within:.0f} count, for the machine is busy"
                if self.spent < self.lasted * 0.9
                else f"waiting for {self._what}: {self.lasted:.0f} s of {self.within:.0f}"
            )
        return self.spent > self.within or self.lasted > LONGEST * self.within

    def __str__(self) -> str:
        """How long the wait was, for the error at its end."""
        if self.spent < self.lasted * 0.9:
            return f"{self.lasted:.0f} s ({self.spent:.0f} s of a processor of its own)"
        return f"{self.lasted:.0f} s"
