"""Checks of the values that a policy is made from. They run when it is made, because in a lane a wrong value
would fail at every message.
"""

from __future__ import annotations

import math

from streams.units import DAY

#: Longest wait in seconds: ten years. It catches a time given in milliseconds.
LONGEST = 3650 * DAY


def not_seconds(value: object) -> str:
    """Why a value is not a duration in seconds, as the end of a sentence; empty if it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"is {value!r}: give a number of seconds"
    if not 0 < value < math.inf:
        return f"is {value} s: give a positive number of seconds"
    if value > LONGEST:
        return f"is {value:g} s, over ten years: give seconds, not milliseconds, and {LONGEST:g} at most"
    return ""


def not_a_count(value: object, least: int) -> str:
    """Why a value is not a whole number of at least `least`, as the end of a sentence; empty if it is."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"is {value!r}: give a whole number"
    return "" if value >= least else f"is {value}: give {least} or more"


def not_classes(value: object) -> str:
    """Why a value is not a collection of exception classes, as the end of a sentence; empty if it is."""
    if not isinstance(value, tuple | list) or not all(
        isinstance(each, type) and issubclass(each, BaseException) for each in value
    ):
        return f"is {value!r}: give a tuple of exception classes"
    return ""
