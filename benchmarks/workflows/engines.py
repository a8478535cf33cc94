"""The workflow engines beside which the saga is measured: how each is had, and what server it needs."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.peers.programs import HERE, peer_python, run
from benchmarks.sections import NotMeasured
from benchmarks.workflows.process import PeerProcess
from streams.local.artifacts import cache_dir
from streams.local.loopback import HOST, reserve
from streams.postgres import Connection

REQUIREMENTS = HERE / "workflows-requirements.txt"
#: Temporal's command, which has the development server in it: the newest that `go install` takes by itself.
TEMPORAL = "github.com/temporalio/cli/cmd/temporal"
TEMPORAL_VERSION = "v1.5.1"
#: Where Go's own instructions put it, when it is not on the path.
_GO_HOME = "/usr/local/go/bin"
#: A commit is in the log of its file, in the system's memory, before it answers: as with Kafka.
_PRAGMAS = ("--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=normal")
#: A worker that asks for an activity may be given it in the answer, which spares the server a poll.
_EAGER = ("--dynamic-config-value", "system.enableActivityEagerExecution=true")
_COMPILED_WITHIN = 1800.0
_ANSWERS_WITHIN = 60.0
_LOOK_EVERY = 0.2
_NOT_ENDED = "SELECT count(*) FROM dbos.workflow_status WHERE status NOT IN ('SUCCESS', 'ERROR')"


def pinned(package: str) -> str:
    """The version of a package in the engines' environment."""
    lines = REQUIREMENTS.read_text().splitlines()
    return next(line.split("==")[1].split()[0] for line in lines if line.startswith(f"{package}=="))


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that is up beside PostgreSQL: its address, and its process by the name in the report."""

    address: str = ""
    pids: Mapping[str, int] = field(default_factory=dict)


class Engine(Protocol):
    """Something that conducts workflows; `module` has its programs, `worker` and `send`."""

    name: str
    title: str
    module: str

    def serving(self, home: Path, say: Callable[[str], None]) -> AbstractAsyncContextManager[Serving]:
        """Its own server, if it has one, for the length of a block. Raises NotMeasured."""

    async def left(self, connection: Connection, server: Serving) -> int:
        """How many workflows have not ended."""


class Dbos:
    """DBOS: a library over PostgreSQL."""

    name = "dbos"
    title = f"DBOS {pinned('dbos')} over PostgreSQL"
    module = "benchmarks.peers.flow_dbos"

    @asynccontextmanager
    async def serving(self, home: Path, say: Callable[[str], None]) -> AsyncIterator[Serving]:
        """It needs none."""
        del home, say
        yield Serving()

    async def left(self, connection: Connection, server: Serving) -> int:
        """As the protocol says."""
        del server
        return int(await connection.fetchval(_NOT_ENDED))


class Temporal:
    """Temporal: its development server, which keeps histories in a file of SQLite."""

    name = "temporal"
    title = f"Temporal, development server {TEMPORAL_VERSION} over SQLite, SDK {pinned('temporalio')}"
    module = "benchmarks.peers.flow_temporal"

    def __init__(self) -> None:
        self._program = Path()

    @asynccontextmanager
    async def serving(self, home: Path, say: Callable[[str], None]) -> AsyncIterator[Serving]:
        """Its server."""
        self._program = temporal_program(say)
        port = reserve()
        command = [str(self._program), "server", "start-dev", "--headless", "--log-level", "warn"]
        command += ["--ip", HOST, "--port", str(port.port), "--db-filename", str(home / "temporal.db")]
        command += [*_PRAGMAS, *_EAGER]
        address = f"{HOST}:{port.port}"
        try:
            with PeerProcess(command, {}, home / "log" / "temporal.log") as server:
                await self._answers(server, address)
                yield Serving(address, {"Temporal": server.pid})
        finally:
            port.release()

    async def left(self, connection: Connection, server: Serving) -> int:
        """As the protocol says."""
        del connection
        count = await self._ask(server.address, "workflow", "count", "--query", "ExecutionStatus = 'Running'")
        return int(count.split()[-1])

    async def _answers(self, server: PeerProcess, address: str) -> None:
        """Wait until its namespace is there. Raises NotMeasured."""
        deadline = time.monotonic() + _ANSWERS_WITHIN
        while True:
            server.must_run("it answered")
            try:
                await self._ask(address, "operator", "namespace", "describe", "--namespace", "default")
            except NotMeasured:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_LOOK_EVERY)
            else:
                return

    async def _ask(self, address: str, *words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(str(self._program), *words, "--address", address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        if process.returncode:
            raise NotMeasured(f"temporal {words[0]} {words[1]}: {errors.decode().strip()[-300:]}")
        return output.decode()


def engines_python(say: Callable[[str], None]) -> Path:
    """A Python that has DBOS and Temporal's SDK. Raises NotMeasured."""
    return peer_python("workflow-engines", "DBOS and Temporal's SDK", REQUIREMENTS, say)


def temporal_program(say: Callable[[str], None]) -> Path:
    """Temporal's command, compiled when it is not there yet.

    Raises:
        NotMeasured: there is no Go, or it does not compile.
    """
    home = cache_dir() / f"temporal-{TEMPORAL_VERSION}"
    program, installed = home / "temporal", home / "installed"
    if installed.exists():
        return program
    go = shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", ""), _GO_HOME]))
    if go is None:
        raise NotMeasured("there is no Go toolchain to compile Temporal's server with")
    say("compiling Temporal's development server, which takes some minutes once ...")
    command = [go, "install", "-p", "2", f"{TEMPORAL}@{TEMPORAL_VERSION}"]
    run(command, "compile Temporal", within=_COMPILED_WITHIN, environment={"GOBIN": str(home)})
    installed.touch()
    return program
