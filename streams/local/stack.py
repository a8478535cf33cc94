"""A local stack from outside: start it, read where it is, stop it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

import msgspec
import psutil

from streams.local import state
from streams.local.busy_timeout import BusyTimeout
from streams.local.errors import NotReady, StackError
from streams.local.parts import StackSpec
from streams.local.processes import POLL, READY_WITHIN, STOP_WITHIN, Companion
from streams.local.supervisor import ERROR, READY, take_over

_STOPPED_WITHIN = 2 * STOP_WITHIN + 10
"""Seconds for a supervisor to end: companions, then brokers, each killed at last; as `BusyTimeout` counts."""

_left_running: list[subprocess.Popen[str]] = []
"""Supervisors that outlive us: a Popen that is collected while its process runs warns."""


def _silent(_line: str) -> None:
    pass


class Stack:
    """A stack that is up. Addresses are read afresh, since a revived broker has another pid."""

    def __init__(self, var: Path) -> None:
        self.var = state.VarDir(var)

    @property
    def state(self) -> state.StackState:
        """The content of `stack.json` now.

        Raises:
            StackError: the stack is down.
        """
        found = self.var.read()
        if found is None:
            raise StackError(f"the stack in {self.var.root} is down: see {self.var.log / 'supervisor.log'}")
        return found

    @property
    def bootstrap(self) -> str:
        """`host:port[,host:port...]` for Kafka clients."""
        return self.state.bootstrap

    def url(self, process: str) -> str:
        """Where a companion process answers."""
        return self.state.processes[process].url

    def signal_broker(self, broker: int, number: signal.Signals) -> None:
        """Send a broker a signal, for fault tests; a killed one comes back when `revive_after` is set."""
        pid = next(each.pid for each in self.state.brokers if each.id == broker)
        psutil.Process(pid).send_signal(number)

    def signal_process(self, process: str, number: signal.Signals) -> None:
        """Send a companion a signal, for fault tests; one that ends of it ends the stack."""
        running = self.state.processes[process]
        if (found := state.find(running.pid, running.started)) is not None:
            found.send_signal(number)

    def stop_process(self, process: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a companion and keep it down until `start_process`; returns when it has gone."""
        self.var.hold(process)
        self.signal_process(process, number)
        self._wait(process, up=False, within=STOP_WITHIN)

    def start_process(self, process: str) -> None:
        """Start a companion again, on the port that it had; returns when it answers.

        Raises:
            StackError: it did not, which ends the stack.
        """
        self.var.let_go(process)
        self._wait(process, up=True, within=READY_WITHIN + STOP_WITHIN)

    def _wait(self, process: str, *, up: bool, within: float) -> None:
        wanted = f"{process} to be {'up' if up else 'down'}"
        patience = BusyTimeout(wanted, within, lambda: [self.state.processes[process].pid], _silent)
        while (found := self.state.processes[process]).up is not up:
            if patience.over():
                raise NotReady(f"waited {patience} for {wanted}: see {found.log}")
            time.sleep(POLL)

    def stop(self) -> None:
        """Stop it and wait until nothing of it runs; does nothing when it is down."""
        stop(self.var.root)


class local_stack:  # noqa: N801 - read as a verb phrase: with local_stack(...) as stack
    """A stack for the length of a `with` or `async with`, which also ends when its starter is killed.

    Args:
        var: its directory; made when missing. Data in it is kept, and found again by the next start.
        brokers: 1 or 3; 0: what else is named alone, without Kafka.
        port: the first broker's port; None: free ports.
        processes: companions to run beside Kafka.
        buckets: S3 buckets to have, at `url("s3")`; none: no S3 is started.
        databases: PostgreSQL databases to have, the first at `url("postgres")`; none: no server is started.
        cdc: run Kafka Connect with Debezium, at `url("connect")`, for the first database.
        listeners: names of further listeners of each broker; where each listens, and at which other port it
            is advertised for a proxy to listen there, is in the state of the brokers.
        secure: further listeners by name, advertised where they listen, each with its protocol: SSL, SASL_SSL
            or SASL_PLAINTEXT; their ports are in that state, too.
        broker_settings: further settings of each broker, by their names in `server.properties`.
        tiered: leave the JVM's optimising compiler on, for benchmarks.
        revive_after: start a broker that died again after so many seconds; None: its death ends the stack.
        say: receives lines of progress.
    """

    def __init__(
        self,
        var: Path,
        *,
        brokers: int = 1,
        port: int | None = None,
        processes: Mapping[str, Companion] | None = None,
        buckets: Sequence[str] = (),
        databases: Sequence[str] = (),
        cdc: bool = False,
        listeners: Sequence[str] = (),
        secure: Mapping[str, str] | None = None,
        broker_settings: Mapping[str, str] | None = None,
        tiered: bool = False,
        revive_after: float | None = None,
        say: Callable[[str], None] = _silent,
    ) -> None:
        self._say = say
        self._spec = StackSpec(
            var=str(var),
            brokers=brokers,
            port=port,
            processes=dict(processes or {}),
            buckets=tuple(buckets),
            databases=tuple(databases),
            cdc=cdc,
            listeners=tuple(listeners),
            secure=dict(secure or {}),
            broker_settings=dict(broker_settings or {}),
            tiered=tiered,
            revive_after=revive_after,
            lifeline=True,
        )
        self._supervisor: subprocess.Popen[str] | None = None

    def __enter__(self) -> Stack:
        self._supervisor = launch(self._spec, self._say)
        return Stack(Path(self._spec.var))

    def __exit__(self, *_: object) -> None:
        if self._supervisor is not None:
            with self._supervisor as supervisor:
                supervisor.terminate()

    async def __aenter__(self) -> Stack:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)


def start(spec: StackSpec, say: Callable[[str], None] = _silent) -> Stack:
    """Start a stack that outlives its starter, and wait until everything answers.

    Raises:
        StackError: it could not start.
    """
    _left_running.append(launch(spec, say))
    return Stack(Path(spec.var))


def launch(spec: StackSpec, say: Callable[[str], None]) -> subprocess.Popen[str]:
    """Start a supervisor in the background and wait until everything answers; returns the supervisor.

    Raises:
        StackError: it could not start; the message is the supervisor's.
    """
    log = state.VarDir(Path(spec.var)).log / "supervisor.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        output = log.open("a")
    except OSError as error:
        raise StackError(f"cannot write to {log} ({error.strerror}): choose another --var") from None
    with output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "streams.local", msgspec.json.encode(spec).decode()],
            stdin=subprocess.PIPE if spec.lifeline else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    try:
        _follow(supervisor, say, log)
    except BaseException:
        with supervisor:
            supervisor.terminate()
        raise
    return supervisor


def _follow(supervisor: subprocess.Popen[str], say: Callable[[str], None], log: Path) -> None:
    """Pass its progress on until it is ready; raise its error if it has one."""
    with cast("IO[str]", supervisor.stdout) as lines:
        for line in map(str.rstrip, lines):
            if line == READY:
                return
            if line.startswith(ERROR):
                raise StackError(line.removeprefix(ERROR))
            say(line)
    raise StackError(f"the supervisor ended too early (status {supervisor.wait()}): see {log}")


def running(var: Path) -> Stack | None:
    """The stack of this directory if it is up."""
    stack = Stack(var)
    found = stack.var.read() if stack.var.supervised() else None
    return stack if found is not None and found.ready else None


def stop(var: Path, say: Callable[[str], None] = _silent) -> bool:
    """Stop the stack of this directory, or what a killed supervisor left; returns whether there was one.

    Raises:
        NotReady: the supervisor did not end in time.
    """
    place = state.VarDir(var)
    was_up = place.supervised() or place.read() is not None
    found = place.read()
    if (pid := place.holder()) is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    ending = [pid] if pid is not None else []
    if found is not None:
        ending += [each.pid for each in found.brokers]
        ending += [each.pid for each in found.processes.values()]
    patience = BusyTimeout("the supervisor to stop", _STOPPED_WITHIN, lambda: ending, say)
    while place.supervised():
        if patience.over():
            raise NotReady(
                f"supervisor {pid} has not stopped within {patience}: see {place.log / 'supervisor.log'}"
            )
        time.sleep(POLL)
    if was_up:
        with place.lock():
            take_over(place, say)
    return was_up
