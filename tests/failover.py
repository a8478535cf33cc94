"""A primary of PostgreSQL, its standby, and an address that leads to one of them: for tests of failover."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from streams.local import loopback, postgres
from tests.postgres import connected, in_a_loop
from tests.waiting import BOUND, eventually_async

DATABASE = "shop"
_CONFIGURATION = """
wal_level = logical
max_connections = 100
fsync = off
wal_keep_size = 64MB
max_slot_wal_keep_size = 512MB
# No restartpoint of its own: a standby that is promoted has what it has replayed, in memory.
checkpoint_timeout = 1h
hot_standby_feedback = on
"""


class Server:
    """One of the two, while it runs."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._reserved = loopback.reserve()
        self.port = self._reserved.port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"{loopback.HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"postgresql://{postgres.USER}@{self.host}/{DATABASE}"

    def start(self) -> None:
        options = ["-c", f"port={self.port}", "-c", f"listen_addresses={loopback.HOST}"]
        options += ["-c", "unix_socket_directories="]
        command = [*postgres._program("postgres"), "-D", str(self.data), *options]
        with self.data.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        in_a_loop(self._answers())

    def end(self, how: int = signal.SIGINT) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(BOUND)
            self._process = None

    def close(self) -> None:
        self.end()
        self._reserved.release()

    async def execute(self, statement: str) -> None:
        async with connected(self.url) as connection:
            await connection.execute(statement)

    async def ask(self, question: str, *arguments: object) -> Any:
        async with connected(self.url, name="test") as connection:
            return await connection.fetchval(question, *arguments)

    async def promote(self) -> None:
        await self.execute("SELECT pg_promote()")

    async def become_read_only(self) -> None:
        """As a former primary does that was told to: sessions stay, and may write no more."""
        await self.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await self.execute("SELECT pg_reload_conf()")
        await eventually_async(self._is_read_only, "the server says that it is read-only")

    async def _is_read_only(self) -> bool:
        return await self.ask("SHOW default_transaction_read_only") == "on"

    async def _answers(self) -> None:
        async def is_up() -> bool:
            return await loopback.postgres_answers(self.port, postgres.USER, "postgres")

        await eventually_async(is_up, f"PostgreSQL answers on {self.port}")


class Pair:
    """A primary with the database, and a standby that follows it."""

    def __init__(self, home: Path) -> None:
        postgres._make(home / "a", [DATABASE], lambda _: None)
        with (home / "a" / "data" / "postgresql.conf").open("a") as file:
            file.write(_CONFIGURATION)
        self.primary = Server(home / "a" / "data")
        self.primary.start()
        command = [*postgres._program("pg_basebackup"), "-D", str(home / "a" / "standby"), "-R", "-c", "fast"]
        reached = ["-h", loopback.HOST, "-p", str(self.primary.port), "-U", postgres.USER, "--no-sync"]
        postgres._run([*command, *reached], "a copy for the standby")
        self.standby = Server(home / "a" / "standby")
        self.standby.start()

    @property
    def urls(self) -> str:
        """Both hosts in one URL, the first primary first."""
        hosts = f"{self.primary.host},{self.standby.host}"
        return f"postgresql://{postgres.USER}@{hosts}/{DATABASE}"

    async def in_step(self) -> None:
        """Wait until the standby has replayed what the primary has written by now."""
        place = await self.primary.ask("SELECT pg_current_wal_lsn()::text")
        question = f"SELECT pg_last_wal_replay_lsn() >= '{place}'::pg_lsn"

        async def has_it() -> bool:
            return bool(await self.standby.ask(question))

        await eventually_async(has_it, "the standby has all")

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
