"""Sessions of the pages that a logout has ended: every worker refuses them, so workers tell each other."""

from __future__ import annotations


class EndedSessions:
    """Sessions that were ended before their time; of others nothing is kept.

    Attributes:
        is_complete: all that other workers have ended is known. Until then no session is believed.
    """

    def __init__(self, *, is_complete: bool = True) -> None:
        self.is_complete = is_complete
        self._until: dict[str, float] = {}

    def add(self, ident: str, until: float, now: float) -> None:
        """Refuse a session from now on, and forget those that are over anyhow."""
        self._until[ident] = until
        self._until = {each: end for each, end in self._until.items() if end > now}

    def __contains__(self, ident: object) -> bool:
        return ident in self._until
