"""Types of errors with a database."""

from __future__ import annotations

from streams.errors import DataError, PermanentError, SteadfaustError, TransientError


class DatabaseUnavailable(TransientError):
    """PostgreSQL does not answer, or has no connection to spare; the same thing may work later."""


class StatementOverdue(DatabaseUnavailable, TimeoutError):
    """PostgreSQL did not answer a statement within its bound, and its connection was cut."""


class StatementRefused(TransientError):
    """PostgreSQL answered that it does not do this now, such as for a lock; the session is as good as before.
    The same thing may work later, some of it once an operator has mended the cause.
    """


class MigrationError(SteadfaustError):
    """The migrations that a database has and those of this program do not belong together."""


class MessageIdTaken(DataError):
    """A message was published under an id that another one in the outbox has; nothing was written."""


class LeaseLost(TransientError):
    """A worker had jobs for longer than its lease, others may have them: what it did is rolled back."""


class NoSuchAction(PermanentError):
    """A job asks for an action that its worker has no handler for."""


class OutboxOwned(SteadfaustError):
    """The outbox belongs to the other kind of relay: both at once would publish each row twice."""


class PoolerBetween(SteadfaustError):
    """A pooler gives each transaction another session, and what was to be done needs one of its own."""


class ConnectUnavailable(TransientError):
    """Kafka Connect does not answer, or refuses; the same thing may work later."""


class ConnectBusy(ConnectUnavailable):
    """Its workers agree on who does what: the same thing works in some seconds."""
