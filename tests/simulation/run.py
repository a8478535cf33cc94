"""Runs a plan: the real lanes, hosts and standbys of several workers, in a world that one seed decides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

import structlog

from streams.dead_letters.row import letter_id
from streams.model.application import Application, LaneOptions
from streams.model.choreography import choreography
from streams.model.codecs import json_without_schema
from streams.model.envelope import new_headers
from streams.model.layout import Layout
from streams.model.operations import LetterCommand, Operation, encode_operation
from streams.ports import TP
from streams.runtime.declared import DEAD_LETTER_ROOM, declare
from streams.staging.keys import store_key
from streams.testing.broker import Fault
from streams.testing.cluster import FakeCluster
from streams.testing.loop import LoopClock, SimulatedLoop
from streams.testing.simulation.group import Group
from streams.testing.simulation.machines import HereClock, Machine, outside_world, own_tasks
from streams.testing.simulation.workers import Points, SimulatedWorker
from tests.simulation.judge import judge, letters_in, missing
from tests.simulation.letters import BREAKER, RETRY, Outside
from tests.simulation.parts import Finding, Step
from tests.simulation.plans import Plan

APP = "sim"
#: Within so many seconds of simulated time after the last fault everything has to be settled: a clock that
#: is set back makes retries late by as much.
BOUND = 1300.0
_OPTIONS = {
    "max_backlog": 200,
    "max_message_bytes": 100_000,
    "fenced_pause": 1.0,
    "retry": RETRY,
    "breaker": BREAKER,
}
#: Modules that measure turns by the processor's time, which no seed decides.
_TIMED = ("lane.intake", "lane.loopback", "lane.turns", "lane.attempt", "lane.measures")


@dataclass
class Result:
    """What became of a run."""

    findings: list[Finding]
    trace: list[str]


class Run:
    """One run, step by step."""

    def __init__(self, plan: Plan, loop: SimulatedLoop, verbose: bool) -> None:
        self.plan = plan
        self.trace: list[str] = []
        self.findings: list[Finding] = []
        self._verbose = verbose
        self._loop = loop
        self._began = loop.time()
        self.rng = Random(plan.seed)
        self.clock = LoopClock(loop)
        self.here = HereClock(self.clock)
        self.outside = Outside(outside_world)
        self.parts = [shape.part(self) for shape in plan.shapes]
        self.app = Application(
            Layout(APP, plan.partitions, plan.lanes),
            choreography(*(route for part in self.parts for route in part.routes())),
            json_without_schema,
            resources={name: each for part in self.parts for name, each in part.resources().items()},
            lane_options=LaneOptions(**{**_OPTIONS, **plan.options}),
        )
        declared = declare(self.app, replication=1)
        self.cluster = FakeCluster(
            {spec.name: spec.partitions for spec in declared},
            max_batch=self.app.lane_options.max_message_bytes + DEAD_LETTER_ROOM,
            limits={spec.name: int(spec.config["max.message.bytes"]) for spec in declared},
            now=self.clock.now,
        )
        self.cluster.transaction_timeout = 15.0
        self.compacted = [spec.name for spec in declared if spec.config.get("cleanup.policy") == "compact"]
        self.group = Group(self.rng, plan.standbys, [self.app.layout.operations], self.note)
        self.machines = [Machine(f"m{n}", loop, self.rng) for n in range(plan.machines)]
        self.points = [Points(self.note) for _ in self.machines]
        self.workers: list[SimulatedWorker | None] = [None] * plan.machines
        self.owned: dict[str, list[int]] = {}
        self.operations = 0

    def note(self, event: str, **more: Any) -> None:
        """A line of the trace."""
        if self._verbose:
            told = " ".join(f"{name}={value}" for name, value in more.items())
            self.trace.append(f"{self._loop.time() - self._began:9.3f} {event} {told}".rstrip())

    def fatal(self, machine: str, error: BaseException) -> None:
        """A worker would end: nothing that happens here is a reason."""
        self.findings.append(Finding("a worker ends unasked", f"{machine}: {error!r}"))

    async def go(self) -> None:
        """All steps, the end of all faults, and the judgement."""
        deciding = asyncio.ensure_future(self.group.run())
        for number in range(len(self.machines)):
            self.start(number)
        try:
            for step in self.plan.steps:
                await asyncio.sleep(max(0.0, self._began + step.at - self._loop.time()))
                self.note("step", what=step)
                self.do(step)
            await asyncio.sleep(1)
            self.end_faults()
            await self.settle()
            self.note("settled")
            self.owned = {w.name: sorted(w.host.lanes) for w in self.workers if w is not None}
            for worker in self.workers:
                if worker is not None:
                    await worker.stop()
        finally:
            deciding.cancel()
            for machine in self.machines:
                machine.kill(range(self.plan.lanes))
            await asyncio.sleep(0)
        if not self.findings:
            self.findings += judge(self)

    def do(self, step: Step) -> None:
        """Do a step: it is the run's own, or one of a part."""
        name = f"do_{step.kind}"
        doer = next(each for each in (self, *self.parts) if hasattr(each, name))
        getattr(doer, name)(*step.what)

    async def settle(self) -> None:
        """Wait until nothing is left to do."""
        end = self._loop.time() + BOUND
        while left := missing(self):
            if self.findings:
                return
            if self._loop.time() > end:
                self.findings.append(Finding("it does not settle", "; ".join(left)))
                return
            await asyncio.sleep(2)

    def end_faults(self) -> None:
        """From now on nothing goes wrong any more."""
        self.cluster._faults.clear()
        self.cluster.refuses = ""
        self.outside.is_down, self.outside.is_healed = False, True
        for part in self.parts:
            part.end_faults()
        for number, machine in enumerate(self.machines):
            self.points[number].call_off()
            machine.thaw()
            machine.is_cut_off = False
            machine.stores.trouble = ""
            if machine.process is None:
                self.start(number)

    # -- steps ----------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start a worker, unless one runs."""
        if self.machines[number].process is not None:
            return
        worker = SimulatedWorker(
            self.machines[number], self.app, self.cluster, self.group, self.points[number], self.fatal
        )
        self.workers[number] = worker
        self.note("started", machine=worker.name)
        self.group.join(worker)

    def _later(self, after: float, what: Any, *args: Any) -> None:
        self._loop.call_later(after, what, *args)

    def do_kill(self, number: int, lost: int, back: float) -> None:
        worker = self.workers[number]
        if worker is None or self.machines[number].process is None:
            return
        worker.kill(lose_batches=lost)
        self.note("killed", machine=worker.name)
        self.workers[number] = None
        self._later(back, self.start, number)

    def do_kill_at(self, number: int, point: str, nth: int, lost: int) -> None:
        self.points[number].plan(point, nth, lambda: self.do_kill(number, lost, 2.0))

    def do_lose_disk(self, number: int, back: float) -> None:
        self.do_kill(number, 0, back)
        if self.machines[number].process is None:
            self.machines[number].stores.trouble = ""
            for lane in range(self.plan.lanes):
                self.machines[number].stores.destroy(lane)

    def do_freeze(self, number: int, seconds: float) -> None:
        self.machines[number].freeze()
        self._later(seconds, self.machines[number].thaw)

    def do_freeze_at(self, number: int, point: str, nth: int, seconds: float) -> None:
        self.points[number].plan(point, nth, lambda: self.do_freeze(number, seconds))

    def do_cut_off(self, number: int, seconds: float) -> None:
        self.machines[number].is_cut_off = True
        self._later(seconds, setattr, self.machines[number], "is_cut_off", False)

    def do_restart(self, number: int, back: float) -> None:
        worker = self.workers[number]
        if worker is None or not self.machines[number].answers:
            return

        async def again() -> None:
            await worker.stop()
            await asyncio.sleep(back)
            self.start(number)

        self.workers[number] = None
        self._stopping = asyncio.ensure_future(again())

    def do_rebalance(self) -> None:
        self.group.rebalance()

    def do_lost_answer(self, fault: str, skip: int) -> None:
        self.cluster.inject(Fault[fault], skip=skip)

    def do_outage(self, seconds: float) -> None:
        self.outside.is_down = True
        self._later(seconds, setattr, self.outside, "is_down", False)

    def do_clock(self, number: int, seconds: float) -> None:
        self.machines[number].clock.skew += seconds
        self._later(60.0, self._clock_is_right, number)

    def _clock_is_right(self, number: int) -> None:
        self.machines[number].clock.skew = 0.0

    def do_compact(self) -> None:
        for topic in self.compacted:
            self.cluster.compact(topic)

    def do_disk_full(self, number: int, seconds: float) -> None:
        self.machines[number].stores.trouble = "No space left on device"
        self._later(seconds, setattr, self.machines[number].stores, "trouble", "")

    def do_damage_disk(self, number: int, back: float) -> None:
        self.do_kill(number, 0, back)
        if self.machines[number].process is None:
            for lane in range(self.plan.lanes):
                self.machines[number].stores.damage(lane)

    def do_refusal(self, seconds: float) -> None:
        self.cluster.refuses = "TOPIC_AUTHORIZATION_FAILED"
        self._later(seconds, setattr, self.cluster, "refuses", "")

    def do_limit(self, topic: str, seconds: float) -> None:
        if topic in self.cluster.limits:
            was, self.cluster.limits[topic] = self.cluster.limits[topic], 10
            self._later(seconds, self.cluster.limits.__setitem__, topic, was)

    def do_operate(self, kind: str, twice: bool) -> None:
        """An operator asks the same of each letter, perhaps from two terminals."""
        for (partition, key), letter in sorted(letters_in(self).items()):
            ident = letter_id(store_key(partition, key))
            command = Operation(kind=LetterCommand(kind), letter=ident, who="ann", why="simulated", at_ms=1)
            self.operations += 1
            for terminal in range(1 + twice):
                message_id = f"{kind}-{self.operations}-{terminal}"
                headers = new_headers("operation", ident, source="desk", time=1e9, message_id=message_id)
                tp = TP(self.app.layout.operations, letter.partition)
                self.cluster.produce(tp, ident.encode(), encode_operation(command), headers)


@contextmanager
def _no_real_time(loop: SimulatedLoop) -> Iterator[None]:
    patches = [patch(f"streams.{module}.perf_counter", loop.time) for module in _TIMED]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def run(plan: Plan, *, verbose: bool = False) -> Result:
    """Run a plan to its end, in a loop of its own."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.simulate()
        own_tasks(loop)
        running: list[Run] = []

        def lost(_: Any, context: dict[str, Any]) -> None:
            running[0].findings.append(
                Finding("an error that nobody hears", repr(context.get("exception") or context["message"]))
            )

        loop.set_exception_handler(lost)

        def log_to_trace(_: Any, __: str, event: dict[str, Any]) -> Any:
            if running:
                name = event.pop("event")
                event.pop("exc_info", None)
                running[0].note(name, **event)
            raise structlog.DropEvent

        async def whole() -> None:
            running.append(Run(plan, loop, verbose))
            await running[0].go()

        was = structlog.get_config()
        structlog.configure(processors=[log_to_trace], cache_logger_on_first_use=False)
        try:
            with _no_real_time(loop):
                runner.run(whole())
        finally:
            structlog.configure(**was)
    return Result(running[0].findings, running[0].trace)
