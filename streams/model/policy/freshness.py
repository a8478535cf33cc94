"""Decides whether a copy of compacted changelogs is too old, so that it may miss deletions.

Kafka keeps a tombstone for at least delete.retention.ms, then compaction removes it. A copy that was current
at some time finds every later deletion within that retention. After it, a deleted row could come back, or a
timer fire again. So a copy older than half the retention is discarded (docs/adr/0002). The other half allows
for clocks that differ or are changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streams.errors import StoreTooOld
from streams.ports import TP


def is_too_old(current_at: float, now: float, delete_retention: float) -> bool:
    """Whether deletions since `current_at` may be gone. A time far in the future comes from a wrong clock,
    so the copy counts as too old. All in seconds.
    """
    return abs(now - current_at) > delete_retention / 2


class Freshness:
    """Follows a copy while changelogs are read into it. `current_at` is the last time, in epoch seconds, at
    which the copy is known to have had every record of its changelogs.
    """

    def __init__(self, current_at: float, delete_retention: float) -> None:
        self.current_at = current_at
        self._delete_retention = delete_retention
        self._asked_at = current_at
        self._ends: Mapping[TP, int] = {}

    @property
    def interval(self) -> float:
        """Minimum seconds between two requests for the end offsets."""
        return self._delete_retention / 8

    @property
    def is_awaited(self) -> bool:
        """Whether the copy has yet to reach the end offsets that were requested last."""
        return bool(self._ends)

    def expect(self, asked_at: float, ends: Mapping[TP, int]) -> None:
        """Note end offsets that were requested at `asked_at`. A copy that reaches them was current then."""
        self._asked_at, self._ends = asked_at, ends

    def has_reached(self, position: Callable[[TP], int]) -> bool:
        """Whether the copy has reached the expected ends. If so, `current_at` becomes their `asked_at`."""
        if not self._ends or any(position(tp) < end for tp, end in self._ends.items()):
            return False
        self.current_at, self._ends = self._asked_at, {}
        return True

    def check(self, now: float) -> None:
        """Raises StoreTooOld if the copy is too old. Call it between a fetch and the write of its records: a
        process that was frozen for days notices only here.
        """
        if is_too_old(self.current_at, now, self._delete_retention):
            raise StoreTooOld(
                f"the local copy was last known to be current {now - self.current_at:.0f} s ago, and"
                f" deletions are kept for {self._delete_retention:g} s: reads may miss some."
                " It is rebuilt from the changelogs"
            )
