"""Decides when throttling by brokers is worth a warning."""

from __future__ import annotations

#: Length of the observed time window, in seconds.
WINDOW = 60.0
#: Warn from this many throttled seconds in the window on, until there are fewer than ENDS. The gap between
#: the two keeps a load near its quota from filling the log.
BEGINS, ENDS = 5.0, 1.0
#: A throttle that starts within this many seconds of a spell's begin is added to it, so that few are kept.
_ADDED_WITHIN = 1.0


class HeldBack:
    """How long brokers have throttled requests of one kind. Time in which several do so counts once."""

    def __init__(self) -> None:
        #: Begin, end, and the throttled seconds between them.
        self._spells: list[tuple[float, float, float]] = []

    def add(self, now: float, seconds: float) -> float:
        """Add a throttle of some seconds from now on. Returns the part that no earlier one covers."""
        self._spells = [spell for spell in self._spells if spell[1] > now - WINDOW]
        until = now + seconds
        start = max(now, self._spells[-1][1]) if self._spells else now
        if until <= start:
            return 0.0
        begin, held = start, until - start
        if self._spells and start < self._spells[-1][0] + _ADDED_WITHIN:
            begin, _, before = self._spells.pop()
            held += before
        self._spells.append((begin, until, held))
        return until - start

    def within(self, now: float) -> float:
        """Throttled seconds in the window that ends now."""
        found = 0.0
        for begin, end, held in self._spells:
            seen = min(end, now) - max(begin, now - WINDOW)
            if seen > 0:
                found += held * seen / (end - begin)
        return found


def is_said(held: float, *, before: bool) -> bool:
    """Whether `held` throttled seconds in the window are worth a warning; `before`: one is active already."""
    return held >= (ENDS if before else BEGINS)
