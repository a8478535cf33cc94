"""Keeps sessions on the primary: finds those that stay on a former one, and cuts them.

After a failover the address leads to the new primary, but sessions that are open stay where they are. If
the former primary lives on and can be written, what they commit there is lost. So a new connection is opened
every few seconds, to each host of the URL: a promoted standby has begun a higher timeline of the same data.
Sessions of an older one are cut, and none is opened there any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import asyncpg
import structlog

from streams.postgres.bounded import BOUND, BoundedConnection
from streams.postgres.connecting import Server, hosts_of, look_at, open_connection, place_of, server_of

log = structlog.get_logger(__name__)

EVERY = 5.0
"""Seconds between two looks at where the address leads to."""

PATIENCE = 2.0
"""Seconds that a host has for each step of a look."""

#: What a host that cannot be looked at makes of it.
_AWAY = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresError, asyncpg.InternalClientError)


class FormerPrimary(ConnectionError):
    """The address leads to a server that was primary before another one; nothing is written there."""


class Primary:
    """Opens connections to the primary that a URL leads to, and cuts them when another one took over.

    Arguments:
        url: with one host or several; of several that can be written, the one promoted last is taken.
        name: what the server shows this program as.
    """

    def __init__(self, url: str, name: str) -> None:
        self._hosts = hosts_of(url)
        self._name = name
        self._chosen = self._hosts[0]
        self._newest: Server | None = None
        self._looked = -EVERY
        self._looking = asyncio.Lock()
        self._sessions: WeakKeyDictionary[BoundedConnection, Server] = WeakKeyDictionary()

    async def connect(
        self,
        *,
        timeout: float,
        bound: float | None = BOUND,
        settings: Mapping[str, str] | None = None,
    ) -> BoundedConnection:
        """A connection, which is cut when it is found to lead to a former primary.

        Raises what asyncpg does when it cannot be opened, and FormerPrimary.
        """
        if len(self._hosts) > 1 and time.monotonic() - self._looked > EVERY:
            why = await self.look(timeout)
            if why:
                raise ConnectionError(why)
        connection = await open_connection(
            self._chosen, name=self._name, timeout=timeout, bound=bound, settings=settings
        )
        try:
            server = await server_of(connection, self._chosen)
            self._require_newest(server)
        except BaseException:
            connection.terminate()
            raise
        if not server.is_pooled:  # else a pooler decides where each transaction goes
            self._sessions[connection] = server
        return connection

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            if self._sessions:
                await self.look(PATIENCE)

    async def look(self, timeout: float) -> str:
        """Find the primary, and cut sessions to other servers; returns why none was found, else empty.

        A host that does not answer is passed over: its sessions meet that themselves.
        """
        async with self._looking:
            found = await asyncio.gather(*(self._server(host, timeout) for host in self._hosts))
            self._looked = time.monotonic()
            there = [(host, server) for host, server in found if isinstance(server, Server)]
            writable = [(host, server) for host, server in there if server.is_writable]
            if not writable:
                self._looked = -EVERY
                return f"no host can be written: {'; '.join(map(_told, found))}"
            host, primary = writable[0]
            for other, server in writable[1:]:
                if primary.is_older_than(server):
                    host, primary = other, server
            if self._newest is not None and primary.is_older_than(self._newest):
                return f"only a former primary answers: {place_of(host)}"
            self._chosen, self._newest = host, primary
            self._cut(primary)
            return ""

    def _cut(self, primary: Server) -> None:
        former = [
            (session, server)
            for session, server in self._sessions.items()
            if not session.is_closed() and _is_former(server, primary)
        ]
        for session, _ in former:
            session.terminate()
        if former:
            log.warning(
                "former_primary_left",
                application=self._name,
                sessions=len(former),
                timeline=former[0][1].timeline,
                now=primary.timeline,
                effect="what they had open is rolled back or unknown, as when a connection is lost",
            )

    def _require_newest(self, server: Server) -> None:
        newest = self._newest
        if newest is not None and server.is_older_than(newest):
            raise FormerPrimary(
                f"{place_of(self._chosen)} leads to a former primary (timeline {server.timeline}, another"
                f" server was promoted to {newest.timeline}): point it to the new one. After a restore of an"
                " older backup, restart this program"
            )
        if server.is_writable and not server.is_pooled:
            self._newest = server
            if newest is not None and newest.is_older_than(server):
                self._cut(server)

    async def _server(self, host: str, timeout: float) -> tuple[str, Server | Exception]:
        try:
            async with asyncio.timeout(3 * timeout):
                return host, await look_at(host, name=self._name, timeout=timeout)
        except _AWAY as error:
            return host, error


def _is_former(server: Server, primary: Server) -> bool:
    """Whether a session of this server has to move: also where the address leads to other data by now."""
    if server.system == primary.system:
        return server.timeline < primary.timeline
    return bool(server.system and primary.system)


def _told(found: tuple[str, Server | Exception]) -> str:
    host, server = found
    if isinstance(server, Server):
        return f"{place_of(host)} is a standby, or read-only"
    return f"{place_of(host)}: {server or type(server).__name__}"
