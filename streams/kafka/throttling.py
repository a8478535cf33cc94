"""When it is worth a word that brokers hold a client back, for a quota."""

from __future__ import annotations

#: Seconds that are looked at.
WINDOW = 60.0
#: Held back for so many of them it is said; and from then on until it were fewer than these, so that a load
#: near its quota does not fill the log.
BEGINS, ENDS = 5.0, 1.0
#: What begins within so many seconds of another spell is added to that, so that few are kept.
_ADDED_WITHIN = 1.0


class HeldBack:
    """For how long brokers have held back answers of one kind. Where several do at once it counts once."""

    def __init__(self) -> None:
        #: Begin, end, and the seconds between that were held back.
        self._spells: list[tuple[float, float, float]] = []

    def add(self, now: float, seconds: float) -> float:
        """Add what a broker holds back from now on; returns how much of that no other does."""
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
        """Seconds of the window that were held back."""
        found = 0.0
        for begin, end, held in self._spells:
            seen = min(end, now) - max(begin, now - WINDOW)
            if seen > 0:
                found += held * seen / (end - begin)
        return found


def is_said(held: float, *, before: bool) -> bool:
    """Whether so many seconds of the window are worth a word; `before`: it was said already."""
    return held >= (ENDS if before else BEGINS)
