"""Where a lane is in its life."""

from __future__ import annotations

from enum import StrEnum


class LaneState(StrEnum):
    """Of a lane, as it is shown."""

    OPENING = "opening"
    OPEN = "open"
    BACKING_OFF = "backing_off"  # after an error, before it opens again
    QUARANTINED = "quarantined"
    CLOSED = "closed"
