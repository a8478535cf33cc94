"""A primary of PostgreSQL, its standby, and an address that leads to one of them: for tests of failover."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from chaos.rig.postgres_server import PostgresServer, copy_for_standby, until_in_step
from streams.local import loopback, postgres
from tests.waiting import eventually_async

DATABASE = "shop"
_CONFIGURATION = """
wal_level = logical
max_connections = 100
fsync = off
max_slot_wal_keep_size = 512MB
# No restartpoint of its own: a standby that is promoted has what it has replayed, in memory.
checkpoint_timeout = 1h
hot_standby_feedback = on
"""


class Server(PostgresServer):
    """One of the two, while it runs."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, DATABASE)

    async def become_read_only(self) -> None:
        """As a former primary does that was told to: sessions stay, and may write no more."""
        await self.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await self.execute("SELECT pg_reload_conf()")
        await eventually_async(self._is_read_only, "the server says that it is read-only")

    async def _is_read_only(self) -> bool:
        return await self.ask("SHOW default_transaction_read_only") == "on"


class Pair:
    """A primary with the database, and a standby that follows it."""

    def __init__(self, home: Path) -> None:
        postgres._make(home / "a", [DATABASE], lambda _: None)
        with (home / "a" / "data" / "postgresql.conf").open("a") as file:
            file.write(_CONFIGURATION)
        self.primary = Server(home / "a" / "data")
        self.primary.start()
        copy_for_standby(self.primary.port, home / "a" / "standby")
        self.standby = Server(home / "a" / "standby")
        self.standby.start()

    @property
    def urls(self) -> str:
        """Both hosts in one URL, the first primary first."""
        hosts = f"{self.primary.host},{self.standby.host}"
        return f"postgresql://{postgres.USER}@{hosts}/{DATABASE}"

    async def in_step(self) -> None:
        """Wait until the standby has replayed what the primary has written by now."""
        await until_in_step(self.primary.url, self.standby)

    def close(self) -> None:
        self.standby.close()
        self.primary.close()


@contextmanager
def a_pair(home: Path) -> Iterator[Pair]:
    pair = Pair(home)
    try:
        yield pair
    finally:
        pair.close()


class Address:
    """A port that leads to one server, and later to another: connections that are open stay where they are,
    as behind a name in DNS, a virtual address, or a balancer that was told.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = ""
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._meet, loopback.HOST, 0)
        port = self._listening.sockets[0].getsockname()[1]
        self.url = f"postgresql://{postgres.USER}@{loopback.HOST}:{port}/{DATABASE}?sslmode=disable"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listening is not None
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _meet(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [to_client]
        try:
            server, to_server = await asyncio.open_connection(loopback.HOST, self.server.port)
            ends.append(to_server)
            async with asyncio.TaskGroup() as group:
                group.create_task(_forward(client, to_server))
                group.create_task(_forward(server, to_client))
        except* (OSError, EOFError):
            pass  # one side has ended: so does the other
        finally:
            self._tasks.discard(task)
            for writer in ends:
                writer.transport.abort()


async def _forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    raise EOFError
