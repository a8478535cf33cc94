"""The one process that starts a local stack, watches it and stops it.

It runs in front (`steadfaust up --foreground`) or as `python -m streams.local SPEC`. In the second
case its standard error is the log, and its standard output has its progress, for the process that started it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from streams.errors import SteadfaustError
from streams.local import artifacts, loopback, postgres, state
from streams.local.busy_timeout import BusyTimeout, Say
from streams.local.companions import Companions
from streams.local.errors import DiskFull, NotReady, ProcessDied
from streams.local.kafka import BrokerNode, ClusterFiles, Jvm
from streams.local.parts import StackSpec, parts
from streams.local.processes import READY_WITHIN, STOP_WITHIN, Child, together

LEAST_FREE_SPACE = 1 << 30
"""Bytes that must be free: Kafka stops for good when a write fails."""

READY, ERROR = "ready", "error: "
"""Markers in the supervisor's output, for the starter."""


def supervise(spec: StackSpec, say: Say, ready: Callable[[], None] = lambda: None) -> None:
    """Run the stack until SIGTERM or SIGINT, then stop it in order.

    Raises:
        StackError: it could not start, or a part of it died; everything else has been stopped.
    """
    var = state.VarDir(Path(spec.var))
    with ExitStack() as held:
        held.enter_context(var.lock())
        var.log.mkdir(exist_ok=True)
        take_over(var, say)
        _require_space(var.root)
        var.let_go_of_all()
        jars = artifacts.class_path(artifacts.kafka(), say) if spec.brokers else ""
        jvm = Jvm(artifacts.java(), jars, tiered=spec.tiered)

        def port(wanted: int | None = None) -> int:
            reserved = loopback.reserve(wanted)
            held.callback(reserved.release)
            return reserved.port

        first = spec.port
        clients = [port(None if first is None else first + index) for index in range(spec.brokers)]
        nodes = [
            BrokerNode(number, client, port(), _listeners(spec, port), spec.broker_settings)
            for number, client in enumerate(clients, start=1)
        ]
        cluster = ClusterFiles(var.kafka, jvm, nodes)
        cluster.prepare(say)
        companions = Companions(var, parts(spec, var, jvm, port, cluster.bootstrap, say), say)
        asyncio.run(_Supervisor(spec, var, cluster, companions, say).run(ready))


def _listeners(spec: StackSpec, port: Callable[[], int]) -> dict[str, state.Listener]:
    proxied = {name: state.Listener(port(), port()) for name in spec.listeners}
    ports = {name: port() for name in spec.secure}
    return proxied | {name: state.Listener(at, at, spec.secure[name]) for name, at in ports.items()}


def take_over(var: state.VarDir, say: Say) -> None:
    """End what a supervisor that was killed has left running. The caller holds the lock."""
    left = var.read()
    if left is None:
        return
    orphans = state.orphans(left)
    if orphans:
        pids = ", ".join(str(process.pid) for process in orphans)
        say(f"supervisor {left.supervisor_pid} was killed: ending what it left running (pid {pids})")
    postgres.end_left(var.postgres)
    for pid in state.end(orphans, STOP_WITHIN):
        say(f"pid {pid} did not stop within {STOP_WITHIN:.0f} s and was killed")
    var.forget()


def _require_space(root: Path) -> None:
    free = shutil.disk_usage(root).free
    if free < LEAST_FREE_SPACE:
        raise DiskFull(
            f"only {free >> 20} MiB are free where {root} is, Kafka needs {LEAST_FREE_SPACE >> 20}: "
            "free some space, or choose another --var"
        )


class _Supervisor:
    """The running part: children, and the `stack.json` that names them."""

    def __init__(
        self, spec: StackSpec, var: state.VarDir, cluster: ClusterFiles, companions: Companions, say: Say
    ) -> None:
        self.spec = spec
        self.var = var
        self.cluster = cluster
        self.companions = companions
        self.say = say
        self.brokers: dict[int, Child] = {}
        self.ready = False
        self.started = state.started(os.getpid())
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")

    async def run(self, ready: Callable[[], None]) -> None:
        asked_to_stop = asyncio.Event()
        self._listen(asked_to_stop)
        life = asyncio.create_task(self._live(ready))
        stop = asyncio.create_task(asked_to_stop.wait())
        try:
            await asyncio.wait({life, stop}, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
        finally:
            life.cancel()
            stop.cancel()
            await asyncio.gather(life, stop, return_exceptions=True)
            await self._stop()

    def _listen(self, asked_to_stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked_to_stop.set)
        if self.spec.lifeline:

            def look() -> None:
                if not os.read(sys.stdin.fileno(), 1):
                    loop.remove_reader(sys.stdin)
                    asked_to_stop.set()

            loop.add_reader(sys.stdin, look)

    async def _live(self, ready: Callable[[], None]) -> None:
        """Start everything, then watch it: this ends only with an error."""
        for node in self.cluster.nodes:
            await self._start_broker(node)
        await together(*(self._answering(node) for node in self.cluster.nodes))
        for broker in self.brokers.values():
            self._let_others_first(broker)
        await self.companions.start(changed=self._record)
        self.ready = True
        self._record()
        ready()
        brokers = (self._watch_broker(node) for node in self.cluster.nodes)
        await together(*brokers, self.companions.watch())

    async def _start_broker(self, node: BrokerNode) -> None:
        log = self.var.log / f"broker-{node.id}.log"
        self.brokers[node.id] = await Child.start(f"broker {node.id}", self.cluster.command(node), log, {})
        self._record()

    def _let_others_first(self, broker: Child) -> None:
        """Several stand for other machines, but answer each other as often as they get a processor. Not while
        they start: a broker that recovers a thousand partitions on a busy machine took minutes then.
        """
        if len(self.cluster.nodes) > 1 and not self.spec.tiered:
            broker.give_way()

    async def _answering(self, node: BrokerNode) -> None:
        answers = partial(loopback.kafka_answers, node.port, len(self.cluster.nodes))
        # All of them: a broker answers when it has found the others.
        starting = [broker.pid for broker in self.brokers.values()]
        patience = BusyTimeout(f"broker {node.id}", READY_WITHIN, lambda: starting, self.say)
        await self.brokers[node.id].ready(answers, patience)
        self.say(f"broker {node.id} answers on {loopback.HOST}:{node.port}")

    async def _watch_broker(self, node: BrokerNode) -> None:
        while True:
            child = self.brokers[node.id]
            await child.wait()
            if self.spec.revive_after is None:
                raise child.death()
            self.say(f"{child.death()}; it starts again in {self.spec.revive_after:g} s")
            await asyncio.sleep(self.spec.revive_after)
            await self._start_broker(node)
            try:
                await self._answering(node)
            except (ProcessDied, NotReady) as error:  # it may still come; or the next round sees that it died
                self.say(str(error))
            self._let_others_first(self.brokers[node.id])

    async def _stop(self) -> None:
        """Companions first, since they may use Kafka; then the brokers, together."""
        await self.companions.stop()
        await asyncio.gather(*(child.stop(STOP_WITHIN, self.say) for child in self.brokers.values()))
        self.var.forget()

    def _record(self) -> None:
        nodes = {node.id: node for node in self.cluster.nodes}
        brokers = [
            state.RunningBroker(
                number,
                child.pid,
                child.started,
                nodes[number].port,
                str(child.log),
                dict(nodes[number].listeners),
            )
            for number, child in self.brokers.items()
        ]
        self.var.write(
            state.StackState(
                supervisor_pid=os.getpid(),
                supervisor_started=self.started,
                ready=self.ready,
                started_at=self.started_at,
                cluster_id=self.cluster.shape.cluster_id if nodes else "",
                bootstrap=self.cluster.bootstrap,
                brokers=brokers,
                processes=self.companions.running(),
            )
        )


class _Starter:
    """The process that started the supervisor: reads its progress from standard output until everything is
    ready.
    """

    def __init__(self) -> None:
        self.listens = True

    def say(self, line: str) -> None:
        """Write a line to the log, which is standard error, and to the starter while it listens."""
        print(datetime.now(UTC).isoformat(timespec="seconds"), line, file=sys.stderr, flush=True)  # noqa: T201 - the log
        if self.listens:
            try:
                print(line, flush=True)  # noqa: T201 - the protocol
            except BrokenPipeError:  # it has gone; the lifeline, if there is one, says what to do
                self.listens = False

    def ready(self) -> None:
        """Tell the starter that everything answers; it stops listening."""
        self.say(READY)
        self.listens = False


def main() -> int:
    """Supervise in the background; exit status 1 when the stack could not start or a part of it died."""
    starter = _Starter()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(0)
    )  # until the loop handles it: end what is being prepared
    try:
        supervise(msgspec.json.decode(sys.argv[1], type=StackSpec), starter.say, starter.ready)
    except (SteadfaustError, OSError) as error:
        starter.say(f"{ERROR}{error}")
        return 1
    return 0
