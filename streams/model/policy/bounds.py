"""Numbers that a policy may be made of. They are checked when it is made: in a lane, an impossible one would
fail at the first message, and each time again.
"""

from __future__ import annotations

import math

from streams.units import DAY

#: Seconds that anything may wait at most: ten years. A time in milliseconds is far beyond.
LONGEST = 3650 * DAY


def not_seconds(value: object) -> str:
    """Why a value is no length of time, as the end of a sentence about it; empty: it is one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"is {value!r}: give a number of seconds"
    if not 0 < value < math.inf:
        return f"is {value} s: give a positive number of seconds"
    if value > LONGEST:
        return f"is {value:g} s, over ten years: give seconds, not milliseconds, and {LONGEST:g} at most"
    return ""


def not_a_count(value: object, least: int) -> str:
    """Why a value is no whole number of at least so much, as the end of a sentence; empty: it is one."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"is {value!r}: give a whole number"
    return "" if value >= least else f"is {value}: give {least} or more"


def not_classes(value: object) -> str:
    """Why a value is no collection of exception classes, as the end of a sentence; empty: it is one."""
    if not isinstance(value, tuple | list) or not all(
        isinstance(each, type) and issubclass(each, BaseException) for each in value
    ):
        return f"is {value!r}: give a tuple of exception classes"
    return ""
