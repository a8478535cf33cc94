"""Browser sessions that were ended by a logout. Workers announce them, so that every worker refuses them."""

from __future__ import annotations


class EndedSessions:
    """Sessions that were ended before they expired.

    Attributes:
        is_complete: whether all sessions that other workers have ended are known. Until then no session is
            accepted.
    """

    def __init__(self, *, is_complete: bool = True) -> None:
        self.is_complete = is_complete
        self._until: dict[str, float] = {}

    def add(self, ident: str, until: float, now: float) -> None:
        """Refuse a session from now on, and forget ended sessions that have expired by now."""
        self._until[ident] = until
        self._until = {each: end for each, end in self._until.items() if end > now}

    def __contains__(self, ident: object) -> bool:
        return ident in self._until
