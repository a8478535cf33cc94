"""Clocks that are set while durations are measured by them."""

from __future__ import annotations

#: Between two looks at a clock less time passes than this, in seconds: if more seems to, it was set.
JUMP = 60.0


def jump(before: float, now: float) -> float:
    """By how many seconds a clock was set between two looks at it, in epoch seconds; 0: it was not."""
    passed = now - before
    return 0.0 if -1 < passed < JUMP else passed
