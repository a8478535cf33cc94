"""A connection to PostgreSQL on which every statement has a bound, on both ends.

A network that acknowledges and forwards nothing looks like a server that takes its time. asyncpg alone would
wait for ever, and with a `command_timeout` it asks a second connection to cancel the statement, which hangs
in the same network. So a passed bound cuts the connection. What the other end still holds then, locks above
all, is the server's to end: the session tells it how.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import asyncpg
import structlog

from streams.postgres.errors import StatementOverdue

T = TypeVar("T")
log = structlog.get_logger(__name__)

#: Seconds for one answer, unless a caller says otherwise.
BOUND = 30.0
#: Seconds after which a connection over a network that has gone silent is lost, and what finds that: a line
#: that is cut says so, one that swallows packets says nothing, and a listener would wait for ever.
_QUIET, _PROBE_EVERY, _PROBES = 10, 5, 3
_SILENT = _QUIET + _PROBE_EVERY * _PROBES
#: A transaction may be idle for so many bounds: its client may wait for something outside meanwhile.
_IDLE_BOUNDS = 10
#: Seconds for the end of a connection.
_FAREWELL = 5.0
_SHOWN = 60

if TYPE_CHECKING:
    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection


class BoundedConnection(_Base):
    """Cuts itself when an answer takes longer than `command_timeout`, or than the `timeout` of a call.

    Each method raises StatementOverdue then. Whether the statement took effect is unknown.
    """

    __slots__ = ()

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """As asyncpg's."""
        return await self._within(query, super().execute(query, *args, timeout=timeout))

    async def executemany(self, command: str, args: Any, *, timeout: float | None = None) -> None:
        """As asyncpg's."""
        await self._within(command, super().executemany(command, args, timeout=timeout))

    async def fetch(self, query: str, *args: Any, **more: Any) -> Any:
        """As asyncpg's."""
        return await self._within(query, super().fetch(query, *args, **more))

    async def fetchval(self, query: str, *args: Any, **more: Any) -> Any:
        """As asyncpg's."""
        return await self._within(query, super().fetchval(query, *args, **more))

    async def fetchrow(self, query: str, *args: Any, **more: Any) -> Any:
        """As asyncpg's."""
        return await self._within(query, super().fetchrow(query, *args, **more))

    async def close(self, *, timeout: float | None = None) -> None:
        """Close the connection, or cut it when the server does not answer."""
        try:
            await super().close(timeout=_FAREWELL if timeout is None else timeout)
        except (OSError, asyncpg.InterfaceError, asyncpg.PostgresError, asyncpg.InternalClientError) as error:
            self.terminate()
            log.info("connection_closed_without_farewell", error=repr(error))

    async def _within(self, query: str, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except TimeoutError as error:  # asyncpg's own alone: one of the caller's arrives as a cancellation
            self.terminate()
            raise StatementOverdue(
                f"it did not answer in time, and the connection was cut: {_first_words(query)}"
            ) from error


class PooledConnection(BoundedConnection):
    """The same to a pooler that lends sessions: it leaves none in another state than it was given."""

    __slots__ = ()

    def get_reset_query(self) -> str:
        """Reset nothing: the session is another client's by now."""
        return ""


def session_settings(
    url: str, name: str, bound: float | None, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The settings of a session, by PostgreSQL's names. A setting in the URL's query wins."""
    found = {
        "application_name": name,
        # A client that is gone is missed, and its locks are free.
        "tcp_keepalives_idle": str(_QUIET),
        "tcp_keepalives_interval": str(_PROBE_EVERY),
        "tcp_keepalives_count": str(_PROBES),
        "client_connection_check_interval": "2s",
    }
    if bound is not None:
        found["idle_in_transaction_session_timeout"] = f"{int(bound * _IDLE_BOUNDS * 1000)}ms"
    own = parse_qs(urlsplit(url).query)
    return {setting: value for setting, value in (found | dict(more or {})).items() if setting not in own}


def is_pooled(connection: Any) -> bool:
    """Whether a pooler lends this connection its sessions. asyncpg takes any connection for an instance of
    each of its classes, so that `isinstance` does not tell.
    """
    return issubclass(type(connection), PooledConnection)


async def probe(connection: Any) -> None:
    """Have the kernel find out when the other end has gone without a word."""
    line = connection._transport.get_extra_info("socket")  # asyncpg has no other way to it
    if line is None or line.family == socket.AF_UNIX:
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _QUIET)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT * 1000)


def _first_words(query: str) -> str:
    lines = (line.strip() for line in query.splitlines())
    first = next((line for line in lines if line and not line.startswith("--")), "")
    return first if len(first) <= _SHOWN else f"{first[:_SHOWN]}..."
