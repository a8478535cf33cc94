"""Processes under the supervisor: Kafka's brokers, and the companions that an application declares."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tomllib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from streams.local import state
from streams.local.busy_timeout import BusyTimeout
from streams.local.errors import BadDeclaration, NotReady, ProcessDied

READY_WITHIN = 60.0
"""Seconds for a process to answer after its start, as `BusyTimeout` counts them."""

STOP_WITHIN = 20.0
"""Seconds for a process to stop before it is killed, as `BusyTimeout` counts them."""

POLL = 0.05
"""Seconds between two looks at whether something has come about."""


GIVES_WAY_BY = 5
"""Added to the niceness of a process that yields to others."""


class Companion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process that an application wants beside Kafka.

    Attributes:
        command: the command line; a leading `python` is the interpreter that runs the stack.
        ready: the path that answers GET with 200 once the process can be used.
    """

    command: list[str]
    ready: str = "/health"


def declared(pyproject: Path) -> dict[str, Companion]:
    """The companions declared in `[tool.steadfaust.local.processes]`; none when there is no such file.

    Raises:
        BadDeclaration: the table does not read as companions.
    """
    try:
        return msgspec.convert(_local_table(pyproject).get("processes", {}), dict[str, Companion])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadDeclaration(f"{pyproject}, [tool.steadfaust.local.processes]: {error}") from None


def declared_buckets(pyproject: Path) -> tuple[str, ...]:
    """The S3 buckets named by `buckets` in `[tool.steadfaust.local]`; none when there is no such file.

    Raises:
        BadDeclaration: that is not a list of names.
    """
    return _names(pyproject, "buckets")


def declared_databases(pyproject: Path) -> tuple[str, ...]:
    """The PostgreSQL databases named by `databases` in `[tool.steadfaust.local]`; none without such a file.

    Raises:
        BadDeclaration: that is not a list of names.
    """
    return _names(pyproject, "databases")


def _names(pyproject: Path, entry: str) -> tuple[str, ...]:
    try:
        return msgspec.convert(_local_table(pyproject).get(entry, []), tuple[str, ...])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadDeclaration(f"{pyproject}, {entry} in [tool.steadfaust.local]: {error}") from None


def _local_table(pyproject: Path) -> dict[str, Any]:
    if not pyproject.exists():
        return {}
    tool = tomllib.loads(pyproject.read_text("utf-8")).get("tool", {})
    table: dict[str, Any] = tool.get("steadfaust", {}).get("local", {})
    return table


class Child:
    """A process that the supervisor started, in a session of its own, with its output in a log."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path, log_start: int) -> None:
        self.name = name
        self.log = log
        self.pid = process.pid
        self.started = state.started(process.pid)
        self._process = process
        self._log_start = log_start

    @classmethod
    async def start(cls, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> Child:
        """Start it.

        Raises:
            BadDeclaration: there is no such program.
        """
        program = sys.executable if command[0] == "python" else command[0]
        with log.open("ab") as output:
            log_start = output.tell()
            try:
                process = await asyncio.create_subprocess_exec(
                    program,
                    *command[1:],
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **env},
                    start_new_session=True,  # Ctrl-C is the supervisor's: it stops its children in order
                )
            except OSError as error:
                raise BadDeclaration(f"{name} cannot be started: {error}") from None
        return cls(name, process, log, log_start)

    async def wait(self) -> int:
        """Its exit status, once it has ended; negative: the signal that ended it."""
        return await self._process.wait()

    async def ready(self, answers: Callable[[], Awaitable[bool]], patience: BusyTimeout) -> None:
        """Wait until it answers.

        Raises:
            ProcessDied: it ended first.
            NotReady: the patience was over before.
        """
        while not await _bounded(answers):
            if self._process.returncode is not None:
                raise self.death()
            if patience.over():
                raise NotReady(f"{self.name} did not answer within {patience}: see {self.log}")
            await asyncio.sleep(POLL)

    def give_way(self) -> None:
        """Let others go first from now on, where there are not processors enough for all."""
        with suppress(OSError):  # it has ended, or the machine does not let us
            ours = max(GIVES_WAY_BY, os.getpriority(os.PRIO_PROCESS, 0))  # `nice` may have begun it all
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), ours)
            # The scheduler weighs sessions first where it groups by them, then threads.
            Path(f"/proc/{self.pid}/autogroup").write_text(str(ours))

    def death(self) -> ProcessDied:
        """The error that says how it ended, and why as far as its log tells."""
        status = self._process.returncode or 0
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return ProcessDied(f"{self.name} died ({how}): {why(self.log, self._log_start)}; log: {self.log}")

    async def stop(
        self, grace: float, say: Callable[[str], None], by: signal.Signals = signal.SIGTERM
    ) -> None:
        """Ask it to stop, and kill it if it has not within `grace` seconds that count."""
        with suppress(ProcessLookupError):
            self._process.send_signal(by)
        patience = BusyTimeout(f"{self.name} to stop", grace, lambda: [self.pid], say)
        ended = asyncio.create_task(self._process.wait())
        while not (await asyncio.wait({ended}, timeout=min(1.0, grace / 4)))[0]:
            if patience.over():
                say(f"{self.name} did not stop within {patience} and is killed; log: {self.log}")
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
                await ended


async def _bounded(answers: Callable[[], Awaitable[bool]]) -> bool:
    """One look, given up after 2 s: a process may accept a connection and say nothing."""
    try:
        # Not wait_for: before Python 3.12 it drops a cancellation that arrives together with the answer.
        async with asyncio.timeout(2.0):
            return await answers()
    except TimeoutError:
        return False


async def together(*work: Coroutine[None, None, None]) -> None:
    """Await all of them; the first error cancels the others and is raised as it is."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_TELLING = {
    "No space left on device": "the disk is full: free some space and start again",
    "Address already in use": "its port is taken: start again to have another one chosen",
    "OutOfMemoryError": "it ran out of memory",
}


def why(log: Path, since: int = 0) -> str:
    """The cause of a death in a few words, from the end of what the log says after byte `since`."""
    with log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - 20_000))
        lines = file.read().decode(errors="replace").splitlines()
    for sign, meaning in _TELLING.items():
        if any(sign in line for line in lines):
            return meaning
    errors = [
        line for line in lines if any(word in line for word in ("ERROR", "FATAL", "Error:", "Exception:"))
    ]
    return errors[-1].strip()[:200] if errors else "its log tells no error, so something outside ended it"
