"""The state files of a stack: who runs, where, and the lock that says it is alive."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec
import psutil

from streams.local.errors import StackBusy, StackError

_SAME_START = 2.0
"""Seconds: start times are computed from the boot time, which moves when the clock is set."""

_GLANCE = 0.5
"""Seconds to wait for the lock: `supervised` holds it for an instant to see whether it is free."""


class Listener(msgspec.Struct, frozen=True):
    """A further way into a broker: it listens on `port` and sends clients to `advertised`, another port where
    a proxy is to listen. `protocol` is as Kafka calls it.
    """

    port: int
    advertised: int
    protocol: str = "PLAINTEXT"


class RunningBroker(msgspec.Struct, frozen=True):
    """A broker. `started` is its start time as seconds since 1970, `log` the path of its output."""

    id: int
    pid: int
    started: float
    port: int
    log: str
    listeners: dict[str, Listener] = {}


class RunningProcess(msgspec.Struct, frozen=True):
    """A companion process, reachable at `url` while it is `up`: it is not while a test keeps it down."""

    pid: int
    started: float
    url: str
    log: str
    up: bool = True


class StackState(msgspec.Struct, frozen=True):
    """The contents of `stack.json`.

    Attributes:
        ready: everything has answered.
        bootstrap: `host:port[,host:port...]` for Kafka clients.
        started_at: ISO 8601, UTC.
    """

    supervisor_pid: int
    supervisor_started: float
    ready: bool
    started_at: str
    cluster_id: str
    bootstrap: str
    brokers: list[RunningBroker]
    processes: dict[str, RunningProcess]


class VarDir:
    """The paths of a stack's directory."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.log = self.root / "log"
        self.kafka = self.root / "kafka"
        self.s3 = self.root / "s3"
        self.connect = self.root / "connect"
        self.postgres = self.root / "postgres"
        self._held = self.root / "held"
        self.state_file = self.root / "stack.json"
        self.lock_file = self.root / "stack.lock"

    def read(self) -> StackState | None:
        """The state that the last supervisor wrote; None after an orderly stop.

        Raises:
            StackError: the file is of another version of the stack.
        """
        try:
            return msgspec.json.decode(self.state_file.read_bytes(), type=StackState)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise StackError(
                f"{self.state_file} cannot be read ({error}): end the processes it names, then remove it"
            ) from None

    def write(self, state: StackState) -> None:
        """Replace `stack.json`, so that a reader never sees half of it."""
        new = self.state_file.with_suffix(".json.new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n")
        new.replace(self.state_file)

    def forget(self) -> None:
        """Remove `stack.json`: nothing of this stack runs any more."""
        self.state_file.unlink(missing_ok=True)

    def hold(self, process: str) -> None:
        """Ask the supervisor to leave this companion down once it has ended."""
        self._held.mkdir(exist_ok=True)
        (self._held / process).touch()

    def let_go(self, process: str) -> None:
        """Ask the supervisor to start this companion again."""
        (self._held / process).unlink(missing_ok=True)

    def let_go_of_all(self) -> None:
        """Forget what was to be down in an earlier run."""
        shutil.rmtree(self._held, ignore_errors=True)

    def held(self, process: str) -> bool:
        """Whether this companion is to be down."""
        return (self._held / process).exists()

    def lock(self) -> IO[str]:
        """Hold the directory until the file is closed; the kernel lets go of it when the process dies.

        Raises:
            StackBusy: another supervisor holds it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        file = self.lock_file.open("a+")
        if not _take(file, within=_GLANCE):
            file.close()
            raise StackBusy(
                f"{self.root} is in use by the supervisor with pid {self.holder()}: "
                f"stop it with steadfaust down --var {self.root}, or choose another --var"
            )
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        return file

    def supervised(self) -> bool:
        """Whether a supervisor holds the directory now."""
        if not self.lock_file.exists():
            return False
        with self.lock_file.open() as file:
            return not _take(file)

    def holder(self) -> int | None:
        """The pid of the supervisor that holds the directory; None when there is none."""
        if not self.supervised():
            return None
        text = self.lock_file.read_text().strip()
        return int(text) if text else None


def _take(file: IO[str], within: float = 0.0) -> bool:
    """Whether the lock could be had within so many seconds."""
    deadline = time.monotonic() + within
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)


def started(pid: int) -> float:
    """A process's start time; 0 when it has gone already."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return 0.0


def find(pid: int, since: float) -> psutil.Process | None:
    """The process that had this pid at that start time: a reused pid belongs to another process."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - since) < _SAME_START
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def orphans(state: StackState) -> list[psutil.Process]:
    """Processes of a stack whose supervisor has gone, each verified by pid and start time."""
    recorded: Iterable[RunningBroker | RunningProcess] = [*state.brokers, *state.processes.values()]
    found = (find(each.pid, each.started) for each in recorded)
    return [process for process in found if process is not None]


def end(processes: list[psutil.Process], grace: float) -> list[int]:
    """Ask them to stop, and kill those that have not within `grace` seconds; returns whom it killed."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _gone, left = psutil.wait_procs(processes, timeout=grace)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=grace)
    return [process.pid for process in left]
