"""How busy the machine was: what a process needs takes longer where it waits for a processor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from streams.local.patience import Used, used_by

#: However busy the machine was, a time that has a limit counts as no less than a third.
MOST = 3.0


class Slowness:
    """What processes have run and waited since this was made.

    Those that have ended do not count any more, and new ones count from their start.
    """

    def __init__(
        self, pids: Callable[[], Iterable[int]], used: Callable[[Iterable[int]], Used] = used_by
    ) -> None:
        self._pids = pids
        self._used = used
        self._before = self._look()

    def factor(self) -> float:
        """How many times longer they took than with a processor of their own, from 1 to `MOST`."""
        ran = waited = 0.0
        for pid, now in self._look().items():
            before = self._before.get(pid, Used(0.0, 0.0))
            ran += max(0.0, now.ran - before.ran)
            waited += max(0.0, now.waited - before.waited)
        return min(MOST, 1 + waited / ran) if ran > 0 else 1.0

    def _look(self) -> Mapping[int, Used]:
        return {pid: self._used([pid]) for pid in self._pids()}
