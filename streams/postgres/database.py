"""A pool of connections to PostgreSQL, whose waits are bounded."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from urllib.parse import urlsplit

import asyncpg
import structlog

from streams.postgres.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    #: One that was opened by hand, or one of a pool.
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]
else:
    Pool = asyncpg.Pool
    Connection = asyncpg.Connection

log = structlog.get_logger(__name__)

#: What a server that cannot be reached, starts, stops or has no connection left makes of a call.
UNAVAILABLE = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    # The server has just said that it ends the connection, and the next call came before the end itself:
    # asyncpg refuses it as "another operation is in progress".
    asyncpg.InternalClientError,
)
#: What a server answers that cannot do its work now: it has become a standby, or its disk or memory is full.
#: The same statement may work later, or by a new connection.
REFUSING = (
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
)
#: Seconds after which a connection over a network that has gone silent is lost, and what finds that: a line
#: that is cut says so, one that swallows packets says nothing, and a listener would wait for ever.
_QUIET, _PROBE_EVERY, _PROBES = 10, 5, 3
_SILENT = _QUIET + _PROBE_EVERY * _PROBES


class Database:
    """Connections to one database; use it `async with`, or `open` and `close` it.

    Arguments:
        url: `postgresql://user:password@host:port/database`.
        least, most: connections that are kept open, and that are open at most.
        patience: seconds that a caller waits for a free connection, and for the server at the start.
        name: what the server shows this program as (`application_name`).
    """

    def __init__(
        self, url: str, *, least: int = 1, most: int = 10, patience: float = 5.0, name: str = "steadfaust"
    ) -> None:
        self.url = url
        self._least = least
        self._most = most
        self._patience = patience
        self._name = name
        self._pool: Pool | None = None

    @property
    def pool(self) -> Pool:
        """The pool, once it is open."""
        if self._pool is None:
            raise RuntimeError("the database was not opened: use it with `async with`")
        return self._pool

    async def open(self) -> Self:
        """Connect. Raises DatabaseUnavailable."""
        try:
            self._pool = await asyncpg.create_pool(
                self.url,
                min_size=self._least,
                max_size=self._most,
                timeout=self._patience,
                init=_probe,
                server_settings={"application_name": self._name},
            )
        except UNAVAILABLE as error:
            raise self._unavailable(error) from error
        return self

    async def close(self) -> None:
        """Wait for connections that are lent out, then close all."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        """A connection of the pool.

        Raises DatabaseUnavailable when none is free within `patience`, the server does not answer or cannot
        work now, or the connection is lost while it is used. Whether a commit that was under way took place
        is unknown then.
        """
        pool = self.pool
        try:
            connection = await pool.acquire(timeout=self._patience)
        except UNAVAILABLE as error:
            raise self._unavailable(error) from error
        try:
            yield connection
        except Exception as error:
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                await pool.expire_connections()  # new ones may lead to the server that took over
            if isinstance(error, REFUSING) or _is_lost(connection):
                raise self._unavailable(error) from error
            raise
        finally:
            await self._give_back(pool, connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection in a transaction, which commits at the end, and rolls back when that raises."""
        async with self.acquire() as connection, connection.transaction():
            yield connection

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _give_back(self, pool: Pool, connection: PoolConnectionProxy[asyncpg.Record]) -> None:
        """Back to the pool that it is of, which may be closing and waits for it then. One that is found lost
        only now has done its work: the pool opens another one.
        """
        try:
            await pool.release(connection, timeout=self._patience)
        except UNAVAILABLE as error:
            log.warning("connection_lost", database=without_password(self.url), error=repr(error))

    def _unavailable(self, error: BaseException) -> DatabaseUnavailable:
        cause = str(error) or type(error).__name__
        return DatabaseUnavailable(f"PostgreSQL at {without_password(self.url)} cannot be used now: {cause}")


def _is_lost(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has taken it back by itself, since it was closed
        return True


async def _probe(connection: Any) -> None:
    """Have the kernel find out when the other end has gone without a word."""
    line = connection._transport.get_extra_info("socket")  # asyncpg has no other way to it
    if line is None or line.family == socket.AF_UNIX:
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _QUIET)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT * 1000)


async def connect(
    url: str,
    *,
    name: str = "steadfaust",
    timeout: float = 5.0,
    command_timeout: float | None = None,
    settings: Mapping[str, str] | None = None,
) -> Connection:
    """A connection of its own, for locks and notifications; close it. Raises DatabaseUnavailable.

    Arguments:
        timeout: seconds that the server may take to let us in.
        command_timeout: seconds for one answer; without it any time.
        settings: of the session, by their names in PostgreSQL.
    """
    try:
        connection: Connection = await asyncpg.connect(
            url,
            timeout=timeout,
            command_timeout=command_timeout,
            server_settings={"application_name": name, **(settings or {})},
        )
    except UNAVAILABLE as error:
        cause = str(error) or type(error).__name__
        raise DatabaseUnavailable(f"PostgreSQL at {without_password(url)} cannot be used: {cause}") from error
    await _probe(connection)
    return connection


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@", 1)).geturl()
