"""The states of a lane."""

from __future__ import annotations

from enum import StrEnum


class LaneState(StrEnum):
    """The state of a lane, as pages and metrics show it."""

    OPENING = "opening"
    OPEN = "open"
    BACKING_OFF = "backing_off"  # after an error, before it opens again
    QUARANTINED = "quarantined"
    CLOSED = "closed"
