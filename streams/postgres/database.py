"""A pool of connections to PostgreSQL, whose waits are bounded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from getpass import getuser
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from urllib.parse import parse_qs, urlsplit

import asyncpg
import structlog

from streams.errors import SettingsError
from streams.postgres.bounded import BOUND, BoundedConnection, probe
from streams.postgres.connecting import hosts_of, open_connection, require_session
from streams.postgres.errors import DatabaseUnavailable, StatementOverdue, StatementRefused
from streams.postgres.primary import Primary

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
    # The server has just announced the end of the connection, and the next call came before the end itself:
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


#: What a server answers that has nothing to do with the statement: others had a lock, or came in between.
PASSING = (asyncpg.LockNotAvailableError, asyncpg.TransactionRollbackError)


class Database:
    """Connections to one database; use it `async with`, or `open` and `close` it.

    Arguments:
        url: `postgresql://user:password@host:port/database`, or with several hosts, of which the primary is
            taken: `...@one:5432,other:5432/database`.
        least: 0 lets the server come later; 1 has `open` connect.
        most: connections that are open at most.
        patience: seconds that a caller waits for a free connection, and for the server at the start.
        bound: seconds for the answer to one statement, unless its `timeout` says otherwise. One that passes
            it cuts its connection. A transaction may be idle for ten times as long.
        name: what the server shows this program as (`application_name`).
    """

    def __init__(
        self,
        url: str,
        *,
        least: int = 1,
        most: int = 10,
        patience: float = 5.0,
        bound: float = BOUND,
        name: str = "steadfaust",
    ) -> None:
        self.url = url
        self._least = least
        self._most = most
        self._patience = patience
        self._bound = bound
        self._name = name
        self._pool: Pool | None = None
        self._primary = Primary(url, name)
        self._watching: asyncio.Task[None] | None = None

    @property
    def pool(self) -> Pool:
        """The pool, once it is open."""
        if self._pool is None:
            raise RuntimeError("the database was not opened: use it with `async with`")
        return self._pool

    async def open(self) -> Self:
        """Connect. Raises DatabaseUnavailable, and SettingsError where the URL lacks a user."""
        require_user(self.url)
        try:
            self._pool = await asyncpg.create_pool(
                connect=self._connect,
                # The pool's own floor is kept with a traceback in the log for each attempt in an outage.
                min_size=0,
                max_size=self._most,
                connection_class=BoundedConnection,
                init=probe,
            )
        except UNAVAILABLE as error:
            raise self._unavailable(error) from error
        self._watching = asyncio.create_task(self._primary.run())
        if self._least:
            try:
                async with self.acquire():
                    pass
            except DatabaseUnavailable:
                await self.close()
                raise
        return self

    async def close(self) -> None:
        """Wait for connections that are lent out, then close all; those that are held for longer than a
        statement may take are cut.
        """
        if self._pool is None:
            return
        pool, self._pool = self._pool, None
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        try:
            async with asyncio.timeout(self._bound + self._patience):
                await pool.close()
        except UNAVAILABLE as error:
            pool.terminate()
            log.warning("connections_cut", database=without_password(self.url), error=repr(error))

    @asynccontextmanager
    async def acquire(self, *, within: float | None = None) -> AsyncIterator[Connection]:
        """A connection of the pool, which is cut when it is held for longer than `within` seconds.

        Raises DatabaseUnavailable when none is free within `patience`, the server does not answer or cannot
        work now, or the connection is lost or cut while it is used. Whether a commit that was under way took
        place is unknown then. Raises StatementRefused for a lock, a deadlock or a conflict with others.
        """
        pool = self.pool
        try:
            connection = await pool.acquire(timeout=self._patience)
        except (*UNAVAILABLE, asyncpg.PostgresError) as error:
            raise self._unavailable(error) from error
        cut = asyncio.get_running_loop().call_later(within, connection.terminate) if within else None
        try:
            yield connection
        except Exception as error:
            overdue = overdue_of(error)
            if overdue or isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                # New ones may lead to the server that took over, or by a network that is not silent.
                await pool.expire_connections()
            if isinstance(error, REFUSING) or _is_lost(connection):
                raise self._unavailable(overdue or error) from error
            if isinstance(error, PASSING):
                raise StatementRefused(f"PostgreSQL does not do this now: {error}") from error
            raise
        finally:
            if cut is not None:
                cut.cancel()
            await self._give_back(pool, connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection in a transaction, which commits at the end, and rolls back when that raises."""
        async with self.acquire() as connection, connection.transaction():
            yield connection

    async def session(self, *, bound: float | None = BOUND) -> Connection:
        """A connection of its own, for notifications; close it. It goes with the primary, as the pool does.

        Raises DatabaseUnavailable.
        """
        try:
            connection = await self._primary.connect(timeout=self._patience, bound=bound)
        except (*UNAVAILABLE, asyncpg.PostgresError) as error:
            raise self._unavailable(error) from error
        await probe(connection)
        return connection

    async def require_session(self, what: str) -> None:
        """Raises PoolerBetween when this leads to a pooler, so that a session is no place to keep something;
        `what` needs one. Raises DatabaseUnavailable.
        """
        try:
            await require_session(self.url, what, name=self._name, timeout=self._patience)
        except (*UNAVAILABLE, asyncpg.PostgresError) as error:
            raise self._unavailable(error) from error

    async def _connect(self, *_: Any, **__: Any) -> BoundedConnection:
        return await self._primary.connect(timeout=self._patience, bound=self._bound)

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


def overdue_of(error: BaseException | None) -> StatementOverdue | None:
    """The passed bound, behind what the end of a transaction says of the connection that was cut."""
    while error is not None and not isinstance(error, StatementOverdue):
        error = error.__context__
    return error


def _is_lost(connection: Connection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has taken it back by itself, since it was closed
        return True


async def connect(
    url: str,
    *,
    name: str = "steadfaust",
    timeout: float = 5.0,
    bound: float | None = BOUND,
    settings: Mapping[str, str] | None = None,
    primary: Primary | None = None,
) -> Connection:
    """A connection of its own, for locks and notifications; close it. Raises DatabaseUnavailable.

    Arguments:
        timeout: seconds that the server may take to let us in.
        bound: seconds for one answer; one that passes it cuts the connection. None: any time.
        settings: of the session, by their names in PostgreSQL.
        primary: cuts it when another server takes over, while that runs.
    """
    require_user(url)
    try:
        if primary is not None or len(hosts_of(url)) > 1:
            opening = primary or Primary(url, name)
            connection: Connection = await opening.connect(timeout=timeout, bound=bound, settings=settings)
        else:
            connection = await open_connection(
                url, name=name, timeout=timeout, bound=bound, settings=settings
            )
    except (*UNAVAILABLE, asyncpg.PostgresError) as error:  # such as a password that is being changed
        cause = str(error) or type(error).__name__
        raise DatabaseUnavailable(f"PostgreSQL at {without_password(url)} cannot be used: {cause}") from error
    await probe(connection)
    return connection


def require_user(url: str) -> None:
    """Raises SettingsError where nothing tells as whom to connect: a container may run by a number without a
    name, which the client library would fall back to.
    """
    parts = urlsplit(url)
    named = {"user", "service"} & parse_qs(parts.query).keys()
    if parts.username or named or os.environ.get("PGUSER") or os.environ.get("PGSERVICE"):
        return
    try:
        getuser()
    except (KeyError, OSError):  # the latter from Python 3.13 on
        raise SettingsError(
            f"{url} names no user, and uid {os.getuid()} has no name here: put the user into the URL"
        ) from None


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@", 1)).geturl()
