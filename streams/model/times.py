"""Checks of the times that handlers set: those of timers and of message deadlines."""

from __future__ import annotations

from typing import Final

#: The end of the year 9999, in epoch seconds. It catches a time given in milliseconds.
LATEST: Final = 253_402_300_799.0


def require_time(what: str, value: object) -> None:
    """Raises ValueError or TypeError unless a value is a time in epoch seconds. `what` names the value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} is {value!r}: give seconds since the epoch")
    if not 0 <= value <= LATEST:
        why = ", after the year 9999: milliseconds are to be divided by 1000" if value > LATEST else ""
        raise ValueError(f"{what} is {value!r}{why}: give seconds since the epoch")


def require_span(what: str, value: object) -> None:
    """Raises ValueError unless a value is a duration in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LATEST:
        raise ValueError(f"{what} is {value!r}: give a number of seconds, from 0")
