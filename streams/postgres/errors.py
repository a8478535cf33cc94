"""What can go wrong with a database, as types."""

from __future__ import annotations

from streams.errors import DataError, SteadfaustError, TransientError


class DatabaseUnavailable(TransientError):
    """PostgreSQL does not answer, or has no connection to spare; the same thing may work later."""


class MigrationError(SteadfaustError):
    """The migrations that a database has and those of this program do not belong together."""


class MessageIdTaken(DataError):
    """A message was published under an id that another one in the outbox has; nothing was written."""
