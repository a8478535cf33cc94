"""A process of a run: started with its output in a log, signalled, and known by how it ended."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.rig.log_pipe import LogPipe
from chaos.rig.records import ProcessEnd
from demo.worker_log import WorkerLog
from demo.workers import PROJECT
from streams.host.process import EXIT_HUNG

#: Seconds from SIGTERM until a process must have ended; a worker's own watchdog has the same bound.
ENDS_WITHIN = 30.0
_GRACE = 5.0


class ChildProcess:
    """A process, from its start to its end.

    Attributes:
        name: what it is called everywhere.
        log: what it has written.
        output: the pipe to its log.
        refused: whether it is expected to end with an error.
        expected: why the driver expects it to end; empty: it does not, and its end is a failure.
        hung: whether it did not end in time after SIGTERM.
    """

    def __init__(self, name: str, log: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = WorkerLog(log)
        self.expected = ""
        self.refused = False
        self.hung = False
        self.output = LogPipe(log)
        try:
            self.process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=self.output.writer,
                stderr=self.output.writer,
                start_new_session=True,  # Ctrl-C is the driver's: it ends its processes in order
            )
        finally:
            self.output.handed_over()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended; a frozen one is alive."""
        return self.process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative: by that signal; None while it is alive."""
        return self.process.poll()

    def kill(self, why: str) -> None:
        """SIGKILL, and wait until the process has gone."""
        self.expected = self.expected or why
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.output.close(_GRACE)

    def freeze(self) -> None:
        """SIGSTOP: it stops running, and notices nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    async def stop(self, why: str) -> None:
        """SIGTERM, and wait until it has ended; one that does not in time is `hung`, and killed."""
        self.expected = self.expected or why
        self.thaw()
        self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(ENDS_WITHIN + _GRACE):
                while self.alive:  # noqa: ASYNC110 - a process has no event to wait for
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self.hung = True
            self.kill(why)
        self.output.close(_GRACE)
        self.hung = self.hung or self.exit_code == EXIT_HUNG

    def ended(self) -> ProcessEnd:
        """For the run's record; only of a process that has ended."""
        code = self.process.wait()
        return ProcessEnd(
            worker=self.name,
            pid=self.pid,
            exit_code=code,
            expected=bool(self.expected),
            hung=self.hung,
            refused=self.refused,
        )
