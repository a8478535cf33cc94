"""What ends a chaos run."""

from __future__ import annotations

from streams.errors import SteadfaustError


class ChaosFailed(SteadfaustError):
    """The run cannot go on, or what it was waiting for did not come."""
