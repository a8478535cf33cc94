"""Worker processes of the demo: each is `faust -A agents.worker worker`, with its output in a log."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from demo.worker_log import WorkerLog
from streams.local.loopback import HOST

PROJECT = Path(__file__).parents[1]
_COMMAND = [sys.executable, "-m", "faust", "-A", "agents.worker", "worker"]
_ENDS_WITHIN = 20.0
_FIRST_PORT = 6066


def unwind_on_signals() -> None:
    """Let SIGTERM and SIGHUP unwind this process as Ctrl-C does, so that nothing is left running."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


class DemoWorker:
    """A worker process and the events of its log so far."""

    def __init__(self, number: int, log: Path, environment: Mapping[str, str]) -> None:
        self.number = number
        self.log = log
        self.told_to_end = False
        with log.open("ab") as output:
            self.events = WorkerLog(log, output.tell())
            self.process = subprocess.Popen(
                _COMMAND,
                cwd=PROJECT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is the demo's: it ends its workers in order
            )

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it has lanes and all of them are open."""
        assigned = self.events.assigned
        return self.alive and bool(assigned) and assigned <= self.events.opened

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens when it has ended already."""
        self.told_to_end = True
        self.process.send_signal(number)


class Workers:
    """Starts workers, and ends each of them by its pid when left."""

    def __init__(self, var: Path, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._var = var
        self._log = var / "log"
        self._environment = environment
        self._say = say
        self._reported: set[int] = set()
        self.running: dict[int, DemoWorker] = {}

    def start(self, number: int) -> DemoWorker:
        """Start the worker of this number, again if it has ended."""
        self._log.mkdir(parents=True, exist_ok=True)
        worker = DemoWorker(number, self._log / f"worker-{number}.log", self._environment)
        self.running[number] = worker
        return worker

    @property
    def alive(self) -> list[DemoWorker]:
        """The workers that run."""
        return [worker for worker in self.running.values() if worker.alive]

    @property
    def logs(self) -> str:
        """Where to look."""
        return str(self._log / "worker-*.log")

    def lanes_open(self) -> set[int]:
        """Lanes that are open, once every worker has all of its own open; empty until then."""
        if not all(worker.ready for worker in self.running.values()):
            return set()
        return set().union(*(worker.events.opened for worker in self.running.values()))

    def report_deaths(self) -> int:
        """Report the workers that have ended by themselves, each once; returns how many were found."""
        found = 0
        for worker in self.running.values():
            pid = worker.process.pid
            if worker.alive or worker.told_to_end or pid in self._reported:
                continue
            self._reported.add(pid)
            found += 1
            self._say(f"worker {worker.number} (pid {pid}) ended {_how(worker)}: see {worker.log}")
        return found

    def address(self, worker: DemoWorker) -> str:
        """Where its web pages are: the slot that it holds gives the port."""
        first = int(self._environment["STEADFAUST_WEB_PORT"])
        slots = [slot for slot, pid in held_slots(self._var).items() if pid == str(worker.process.pid)]
        return f"http://{HOST}:{first + slots[0]}/" if slots else "no address"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for worker in self.alive:
                worker.signal(signal.SIGTERM)
            deadline = time.monotonic() + _ENDS_WITHIN
            for worker in self.running.values():
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also when Ctrl-C comes again meanwhile
            for worker in self.alive:
                worker.signal(signal.SIGKILL)
                worker.process.wait()


#: An attempt of a charge asks the gateway once, so that the rest is the lane's; its retries are soon due.
#: Each counts, also where no other charge of its lane succeeds: a card goes through the tiers that it is to.
_RETRIES = {
    "STEADFAUST_GATEWAY_ATTEMPTS": "1",
    "STEADFAUST_RETRY_DELAYS": "0.5,1,2",
    "STEADFAUST_OUTAGE_PATIENCE": "0",
}


def environment(var: Path, **more: str) -> dict[str, str]:
    """Of this process, so that settings reach the workers, but for where Kafka and the gateway are, and for
    how often the gateway's client asks again.
    """
    own = {"STEADFAUST_BOOTSTRAP", "STEADFAUST_GATEWAY_URL"}
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    return {**inherited, **_RETRIES, "STEADFAUST_VAR": str(var), **more}


def held_slots(var: Path) -> dict[int, str]:
    """The slots that workers hold here, each with the worker's pid."""
    held = {}
    for lock in var.glob("workers/*/slot-*/lock"):
        # The first lock is for looking: a worker that starts meanwhile must not find its slot taken by this.
        with (lock.parents[1] / "lock").open("a") as looking, lock.open() as file:
            fcntl.flock(looking, fcntl.LOCK_SH)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                held[int(lock.parent.name.removeprefix("slot-"))] = file.read().strip()
    return held


def free_ports(number: int) -> int:
    """The first of so many free ports in a row, from the usual one on."""
    return next(
        first for first in count(_FIRST_PORT, number) if all(map(_free, range(first, first + number)))
    )


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _how(worker: DemoWorker) -> str:
    status = worker.process.returncode
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
