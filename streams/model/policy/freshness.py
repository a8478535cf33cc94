"""Whether a copy of compacted changelogs may miss a deletion: how long ago it was known to be current.

A tombstone is kept for delete.retention.ms at least; after that compaction removes it. A copy that had all
there was at a time finds every later deletion for so long, and may miss some afterwards: a row comes back,
a timer rings again. So a copy older than half of it is thrown away (docs/adr/0002). The other half is for
clocks that differ, or that were set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streams.errors import StoreTooOld
from streams.ports import TP


def is_too_old(current_at: float, now: float, delete_retention: float) -> bool:
    """Whether deletions since `current_at` may be gone. A time far in the future comes from a clock that was
    wrong, and is as good as none. All in seconds.
    """
    return abs(now - current_at) > delete_retention / 2


class Freshness:
    """Follows one copy while it is read: `current_at` is the last time, in seconds since the epoch, at which
    it is known to have had all that its changelogs had.
    """

    def __init__(self, current_at: float, delete_retention: float) -> None:
        self.current_at = current_at
        self._delete_retention = delete_retention
        self._asked_at = current_at
        self._ends: Mapping[TP, int] = {}

    @property
    def interval(self) -> float:
        """How often to ask for the ends again at most, in seconds."""
        return self._delete_retention / 8

    @property
    def is_awaited(self) -> bool:
        """Whether the ends that were read last have still to be reached."""
        return bool(self._ends)

    def expect(self, asked_at: float, ends: Mapping[TP, int]) -> None:
        """Note ends that were requested at `asked_at`: a copy that reaches them was current then."""
        self._asked_at, self._ends = asked_at, ends

    def has_reached(self, position: Callable[[TP], int]) -> bool:
        """Whether the expected ends are reached; then the copy is known to have been current at that time."""
        if not self._ends or any(position(tp) < end for tp, end in self._ends.items()):
            return False
        self.current_at, self._ends = self._asked_at, {}
        return True

    def check(self, now: float) -> None:
        """Call after each fetch and before what it brought is written. A process that is frozen, and woken
        days later, learns it only here. Raises StoreTooOld.
        """
        if is_too_old(self.current_at, now, self._delete_retention):
            raise StoreTooOld(
                f"the local copy was last known to be current {now - self.current_at:.0f} s ago, and"
                f" deletions are kept for {self._delete_retention:g} s: reads may miss some."
                " It is rebuilt from the changelogs"
            )
