"""Types of errors of the local stack. Each message is one line: what, where, what to do, and the log."""

from __future__ import annotations

from streams.errors import SteadfaustError


class StackError(SteadfaustError):
    """Base of the local stack's errors."""


class JavaPartMissing(StackError):
    """Java or one of its libraries is not there and could not be fetched."""


class PostgresMissing(StackError):
    """PostgreSQL, or what it takes to start it, is not there."""


class PortTaken(StackError):
    """A port that was given by number belongs to another process."""


class DiskFull(StackError):
    """Too little space is left for a broker to work."""


class StackBusy(StackError):
    """Another supervisor holds the directory."""


class OtherCluster(StackError):
    """The directory holds a cluster of another shape than requested."""


class NotReady(StackError):
    """A process runs but did not answer in time."""


class ProcessDied(StackError):
    """A broker or a companion process ended by itself."""


class BadListener(StackError):
    """A further listener has a name that Kafka does not take, or that it has already."""


class BadDeclaration(StackError):
    """A companion process is declared in a way that cannot be started."""
