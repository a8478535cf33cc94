"""Opens connections to a server of PostgreSQL, or to a pooler that lends sessions of one.

A pooler in transaction mode, such as PgBouncer, gives each transaction another session of the server. So
what belongs to a session does not work there: prepared statements, settings, LISTEN, locks. A pooler shows in
the process id: it makes one up, and the server knows its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg
import structlog

from streams.postgres.bounded import BoundedConnection, PooledConnection, session_settings
from streams.postgres.errors import PoolerBetween

log = structlog.get_logger(__name__)

#: How PgBouncer refuses a setting of the session, unless `ignore_startup_parameters` names it.
_REFUSED = "unsupported startup parameter"
#: Looks that a pooler has to lend one session of the server to two clients.
_LOOKS = 20
_ASK = """
SELECT pg_backend_pid() AS pid,
       NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off' AS is_writable
"""
_ORIGIN = """
SELECT (SELECT system_identifier FROM pg_control_system()) AS system,
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint
       END AS timeline
"""

#: How a service answers that hides where its data come from.
_HIDDEN = (
    asyncpg.InsufficientPrivilegeError,
    asyncpg.FeatureNotSupportedError,
    asyncpg.UndefinedFunctionError,
)

#: What is known of the URLs that this process has met: whether a pooler is there.
_pooled: dict[str, bool] = {}


class Server(NamedTuple):
    """The server behind a connection.

    Attributes:
        is_writable: it is neither a standby nor read-only.
        is_pooled: a pooler lends its sessions.
        system: names the data of a primary and its standbys; 0: it does not say.
        timeline: each promotion of a standby begins a higher one; 0: it does not say, or is a standby.
    """

    is_writable: bool
    is_pooled: bool
    system: int = 0
    timeline: int = 0

    def is_older_than(self, other: Server) -> bool:
        """Whether the other one was promoted from a standby of the same data, later."""
        return self.system == other.system and 0 < self.timeline < other.timeline


def hosts_of(url: str) -> list[str]:
    """A URL for each host of this one, in their order."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if "," not in hosts:
        return [url]
    # Programs of this library write, so that only the primary will do.
    query = urlencode([each for each in parse_qsl(parts.query) if each[0] != "target_session_attrs"])
    return [parts._replace(netloc=user + at + host, query=query).geturl() for host in hosts.split(",")]


async def open_connection(
    url: str, *, name: str, timeout: float, bound: float | None, settings: Mapping[str, str] | None = None
) -> BoundedConnection:
    """A connection to the one host of this URL; `timeout` seconds for each step, `bound` for an answer."""
    if url not in _pooled:
        await look_at(url, name=name, timeout=timeout)
    try:
        return await _open(url, name, timeout, bound, settings, is_pooled=_pooled[url])
    except asyncpg.ProtocolViolationError as error:
        if _REFUSED not in str(error):
            raise
        await look_at(url, name=name, timeout=timeout)  # a pooler has come to this address
        return await _open(url, name, timeout, bound, settings, is_pooled=_pooled[url])


async def look_at(url: str, *, name: str, timeout: float) -> Server:
    """The server that a new connection to the one host of this URL leads to."""
    # As if there were a pooler: that works in either case.
    connection = await _open(url, name, timeout, timeout, None, is_pooled=True)
    try:
        return await server_of(connection, url)
    finally:
        await connection.close(timeout=1.0)


async def server_of(connection: BoundedConnection, url: str) -> Server:
    """The server of a connection, which was opened by this URL."""
    row = await connection.fetchrow(_ASK)
    assert row is not None
    is_pooled = row["pid"] != connection.get_server_pid()
    if is_pooled and not _pooled.get(url):
        log.info(
            "postgres_pooler",
            application=connection.get_settings().application_name,
            effect="no prepared statements and no notifications: relays and workers poll about once a second",
        )
    _pooled[url] = is_pooled
    try:
        origin = await connection.fetchrow(_ORIGIN)
    except _HIDDEN:
        return Server(row["is_writable"], is_pooled)  # a service that hides it moves its address itself
    assert origin is not None
    return Server(row["is_writable"], is_pooled, origin["system"], origin["timeline"])


async def require_session(url: str, what: str, *, name: str, timeout: float) -> None:
    """Raises PoolerBetween when a session does not stay ours between two transactions; a connection by this
    URL is open.
    """
    for host in hosts_of(url):
        if _pooled.get(host) and await shares_sessions(host, name=name, timeout=timeout):
            raise PoolerBetween(
                f"{place_of(host)} is a pooler in transaction mode, such as PgBouncer, and {what} needs a"
                " session of its own: set STEADFAUST_POSTGRES_URL to the address of PostgreSQL itself here"
            )


def place_of(url: str) -> str:
    """Host and port, for people."""
    return urlsplit(url).netloc.rpartition("@")[2] or url


async def shares_sessions(url: str, *, name: str, timeout: float) -> bool:
    """Whether a pooler gives a session of the server to other clients between two transactions."""
    one = await _open(url, name, timeout, timeout, None, is_pooled=True)
    try:
        other = await _open(url, name, timeout, timeout, None, is_pooled=True)
        try:
            ours: set[int] = set()
            for _ in range(_LOOKS):
                ours.add(await one.fetchval("SELECT pg_backend_pid()"))
                if await other.fetchval("SELECT pg_backend_pid()") in ours:
                    return True
            return len(ours) > 1
        finally:
            await other.close(timeout=1.0)
    finally:
        await one.close(timeout=1.0)


async def _open(
    url: str,
    name: str,
    timeout: float,
    bound: float | None,
    settings: Mapping[str, str] | None,
    *,
    is_pooled: bool,
) -> BoundedConnection:
    kind = PooledConnection if is_pooled else BoundedConnection
    given = {"application_name": name} if is_pooled else session_settings(url, name, bound, settings)
    connection: BoundedConnection = await asyncpg.connect(
        url,
        timeout=timeout,
        command_timeout=bound,
        connection_class=kind,
        statement_cache_size=0 if is_pooled else 100,
        server_settings=given,
    )
    return connection
