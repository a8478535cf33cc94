"""PostgreSQL servers beside the stack's: a standby that is copied from a primary, started and promoted."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.rig.waiting import ChaosFailed, until_answered
from streams.local import loopback, postgres
from streams.postgres.database import connect

_ANSWERS_WITHIN = 120.0
_ENDS_WITHIN = 60.0
_IN_STEP_WITHIN = 120.0
_LOOK_EVERY = 0.1
#: Keeps what the standby has not read yet.
_SLOT = "standby"


class PostgresServer:
    """A server over a folder, at a port of its own, while it runs.

    Attributes:
        data: its folder.
        port: where it listens, the same after each start.
    """

    def __init__(self, data: Path, database: str, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are those of the server, beside where it listens."""
        self.data = data
        self._database = database
        self._settings = dict(settings or {})
        self._reserved = loopback.reserve()
        self.port = self._reserved.port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """`address:port`."""
        return f"{loopback.HOST}:{self.port}"

    @property
    def url(self) -> str:
        """The URL of the database."""
        return f"postgresql://{postgres.USER}@{self.host}/{self._database}"

    def start(self) -> None:
        """Start it; returns when it answers. To be called outside an event loop. Raises ChaosFailed."""
        settings = {
            "port": str(self.port),
            "listen_addresses": loopback.HOST,
            "unix_socket_directories": "",
            **self._settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [*postgres._program("postgres"), "-D", str(self.data), *options]
        with self.data.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        deadline = time.monotonic() + _ANSWERS_WITHIN
        while not asyncio.run(loopback.postgres_answers(self.port, postgres.USER, "postgres")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ChaosFailed(f"PostgreSQL does not answer: see {self.data.with_suffix('.log')}")
            time.sleep(_LOOK_EVERY)

    def end(self, how: int = signal.SIGINT) -> None:
        """End it, if it runs; returns when it has ended."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_ENDS_WITHIN)
            self._process = None

    def close(self) -> None:
        """End it, and give its port back."""
        self.end()
        self._reserved.release()

    async def execute(self, statement: str) -> None:
        """Run a statement in a session of its own."""
        await execute(self.url, statement)

    async def ask(self, question: str, *arguments: object) -> Any:
        """One value, in a session of its own."""
        return await ask(self.url, question, *arguments)

    async def promote(self) -> None:
        """Make a standby the primary; returns when it is. Raises ChaosFailed."""
        # A session that waited here would hold a snapshot, for which the replay of the last records may wait.
        await self.execute("SELECT pg_promote(wait => false)")

        async def is_primary() -> bool:
            return not await self.ask("SELECT pg_is_in_recovery()")

        what = f"the standby is promoted: see {self.data.with_suffix('.log')}"
        await until_answered(is_primary, what, within=_IN_STEP_WITHIN)


def copy_for_standby(primary: int, data: Path) -> None:
    """Copy the primary that listens on this port into a folder, as a standby of it. Raises StackError."""
    command = [*postgres._program("pg_basebackup"), "-D", str(data), "-R", "-c", "fast", "-C", "-S", _SLOT]
    reached = ["-h", loopback.HOST, "-p", str(primary), "-U", postgres.USER, "--no-sync"]
    postgres._run([*command, *reached], "a copy for the standby")


async def until_in_step(primary: str, standby: PostgresServer) -> None:
    """Wait until a standby has replayed what its primary, at this URL, has committed by now. Raises
    ChaosFailed.
    """
    # Relays mark rows with synchronous_commit off: what they have committed may not be written yet.
    place = await ask(primary, "SELECT pg_current_wal_insert_lsn()::text")
    question = f"SELECT pg_last_wal_replay_lsn() >= '{place}'::pg_lsn"

    async def has_it() -> bool:
        return bool(await standby.ask(question))

    await until_answered(has_it, f"the standby has all up to {place}", within=_IN_STEP_WITHIN)


async def execute(url: str, *statements: str) -> None:
    """Run statements in a session of their own."""
    connection = await connect(url, name="operator")
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def ask(url: str, question: str, *arguments: object) -> Any:
    """One value, in a session of its own."""
    connection = await connect(url, name="operator")
    try:
        return await connection.fetchval(question, *arguments)
    finally:
        await connection.close()
