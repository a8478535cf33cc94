"""Runs a plan: the real lanes, hosts and standbys of several workers, in a world that one seed decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from random import Random
from typing import Any, Protocol

from streams.engine.life.positions.declared import DEAD_LETTER_ROOM, declare
from streams.engine.life.positions.review import Standing
from streams.engine.staging.keys import store_key
from streams.engine.waiting.dead_letters.row import letter_id
from streams.errors import LayoutMismatch, MembershipLost
from streams.model.application import Application, LaneOptions
from streams.model.choreography import Choreography, Route, choreography
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import MakeCodec, json_without_schema
from streams.model.envelope import FINGERPRINT, new_headers
from streams.model.layout import Layout
from streams.model.message import Message
from streams.model.operations import LetterCommand, Operation, encode_operation
from streams.ports import STAMPED, TP
from streams.testing.broker import Fault
from streams.testing.cluster import FakeCluster
from streams.testing.loop import LoopClock, SimulatedLoop
from streams.testing.simulation.coverage import LATER, OF_A_MACHINE, Strike, states
from streams.testing.simulation.group import Group
from streams.testing.simulation.judge import Removed, judge, letters_in, missing
from streams.testing.simulation.machines import HereClock, Machine, Outside, running
from streams.testing.simulation.plan import Finding, Plan, PlanStep
from streams.testing.simulation.workers import Points, SimulatedWorker
from streams.testing.store import FAILING, FULL

APP = "sim"
#: Within so many seconds of simulated time after the last fault everything has to be settled. A timer whose
#: message is refused is put off for an hour at most.
BOUND, LIMIT_BOUND = 1300.0, 4900.0


#: Added to what is left when a run does not settle.
UNSETTLED = """
      What to do: a message whose error may pass (TransientError) waits for as long as no call of its handler
      succeeds. Let the stand-in of what is outside answer in the end, or raise PermanentError."""


class _Cluster(FakeCluster):
    """Says which faults have happened, while they do."""

    struck: Callable[[Fault], None]

    def take(self, fault: Fault) -> bool:
        """Whether this fault is to happen now."""
        taken = super().take(fault)
        if taken:
            self.struck(fault)
        return taken


class Run:
    """One run, step by step."""

    def __init__(self, plan: Plan, loop: SimulatedLoop, *, verbose: bool) -> None:
        self.plan = plan
        self.trace: list[str] = []
        self.coverage: set[Strike] = set()
        self.findings: list[Finding] = []
        self._verbose = verbose
        self.loop = loop
        self._began = loop.time()
        self.rng = Random(plan.seed)
        self.clock = LoopClock(loop)
        self.here = HereClock(self.clock)
        self.outside = Outside()
        self.parts = [shape.part(self) for shape in plan.shapes]
        #: The tables that any version of the application has had.
        self.app_tables: set[str] = set()
        #: The number of lanes that workers start with from now on; whether it was another one before.
        self.lanes, self.is_recut = plan.lanes, False
        self.app = self._application(self._wiring(), LaneOptions(**plan.options))
        #: When a worker was started last.
        self.started_at = 0.0
        declared = declare(self.app, replication=1)
        cluster = _Cluster(
            {spec.name: spec.partitions for spec in declared},
            max_batch=self.app.lane_options.max_message_bytes + DEAD_LETTER_ROOM,
            limits={spec.name: int(spec.config["max.message.bytes"]) for spec in declared},
            now=self.clock.now,
        )
        cluster.struck = self._answer_lost
        self.cluster: FakeCluster = cluster
        self.cluster.transaction_timeout = 15.0
        #: Topics whose records the broker stamps; and for how many seconds it keeps those of topics.
        self.stamped = {spec.name for spec in declared if spec.config.get(STAMPED) == "LogAppendTime"}
        self.kept = {
            spec.name: int(spec.config["retention.ms"]) / 1000
            for spec in declared
            if spec.config.get("cleanup.policy") == "delete"
        }
        self.compacted = [spec.name for spec in declared if spec.config.get("cleanup.policy") == "compact"]
        self.group = Group(self.rng, plan.standbys, [self.app.layout.operations], self.note)
        self.machines = [Machine(f"m{n}", loop, self.rng) for n in range(plan.machines)]
        self.points = [Points(self.note) for _ in self.machines]
        self.workers: list[SimulatedWorker | None] = [None] * plan.machines
        self.owned: list[list[int]] = []
        self.removed: list[Removed] = []
        self.deleted: dict[str, float] = {}
        self.limits = dict(self.cluster.limits)
        #: Parts without messages of their own.
        self.beside: list[Part] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._kind = ""
        self.operations = 0
        #: Whether all faults have ended.
        self.is_quiet = False
        #: No worker starts any more.
        self.is_over = False

    def _wiring(self) -> Choreography:
        return choreography(*(route for part in self.parts for route in part.routes()))

    def _application(self, wiring: Choreography, options: LaneOptions) -> Application:
        parts = self.parts
        app = Application(
            Layout(APP, self.plan.partitions, self.lanes),
            wiring,
            next((part.codecs for part in parts if part.codecs is not None), json_without_schema),
            resources={name: each for part in parts for name, each in part.resources().items()},
            lane_options=options,
            claims=next((found for part in parts if (found := part.claims()) is not None), None),
        )
        self.app_tables |= set(app.changelogs.values())
        return app

    def version(self, shapes: Sequence[Shape], options: Mapping[str, Any]) -> None:
        """Workers that start from now on have another version of the application."""
        for part, shape in zip(self.parts, shapes, strict=True):
            part.deployed(shape)
        self.rewire(LaneOptions(**options))

    def rewire(self, options: LaneOptions | None = None) -> None:
        """Workers that start from now on have what the parts have now."""
        self.app = self._application(self._wiring(), options or self.app.lane_options)

    def recut(self, lanes: int) -> None:
        """Workers that start from now on have another number of lanes."""
        self.is_recut |= lanes != self.lanes
        self.lanes = lanes
        self.app = self._application(self.app.wiring, self.app.lane_options)

    def note(self, event: str, **more: Any) -> None:
        """A line of the trace."""
        if self._verbose:
            told = " ".join(f"{name}={value}" for name, value in more.items())
            self.trace.append(f"{self.seconds():9.3f} {event} {told}".rstrip())

    def fatal(self, worker: SimulatedWorker, error: BaseException) -> None:
        """A worker ends. A clone of its machine is a reason: it starts again under another name. Another
        number of lanes is one, too.
        """
        is_cloned = isinstance(error, MembershipLost)
        if not (is_cloned or (self.is_recut and isinstance(error, LayoutMismatch))):
            self.findings.append(Finding("a worker ends unasked", f"{worker.name}: {error!r}"))
            return
        self.note("ends", machine=worker.name, why=error)
        if is_cloned:
            self.operations += 1
            worker.machine.name = f"m-{self.operations}"
        self.later(0.0, self._start_again, worker, 3.0)

    async def go(self) -> None:
        """All steps, the end of all faults, and the judgement."""
        deciding = asyncio.ensure_future(self.group.run())
        for number in range(len(self.machines)):
            self.start(number)
        try:
            for step in self.plan.steps:
                await asyncio.sleep(max(0.0, self._began + step.at - self.loop.time()))
                self.note("step", what=step)
                self.do(step)
            await asyncio.sleep(1)
            self.end_faults()
            await self.settle()
            self.note("settled")
            self.owned = [[] if w is None else sorted(w.host.lanes) for w in self.workers]
            for worker in self.workers:
                if worker is not None:
                    await worker.stop()
        finally:
            self.is_over = True
            for task in (deciding, *self._tasks):
                task.cancel()
            for machine in self.machines:
                machine.kill()
                for lane in machine.stores.kept():
                    machine.stores.crash(lane)
            await asyncio.sleep(0)
        for part in self.parts:
            await part.finish()
        if not self.findings:
            self.findings += judge(self)

    def do(self, step: PlanStep) -> None:
        """Do a step: it is the run's own, or one of a part."""
        self._kind, name = step.kind, f"do_{step.kind}"
        self.strike(step.kind, step.what)
        doer = next(each for each in (self, *self.beside, *self.parts) if hasattr(each, name))
        getattr(doer, name)(*step.what)

    async def settle(self) -> None:
        """Wait until nothing is left to do."""
        was_limited = any(step.kind == "limit" for step in self.plan.steps)
        end = self.loop.time() + (LIMIT_BOUND if was_limited else BOUND)
        while left := missing(self):
            if self.findings:
                return
            if self.loop.time() > end:
                self.findings.append(Finding("it does not settle", "; ".join(left) + UNSETTLED))
                return
            await asyncio.sleep(2)

    def end_faults(self) -> None:
        """From now on nothing goes wrong any more."""
        self.is_quiet = True
        self.cluster._faults.clear()
        self.cluster.refuses = ""
        self.outside.is_down, self.outside.is_healed = False, True
        for part in (*self.beside, *self.parts):
            part.end_faults()
        for number, machine in enumerate(self.machines):
            self.points[number].call_off()
            machine.thaw()
            machine.is_cut_off = machine.is_refused = machine.is_deaf = False
            machine.slowness = 0.0
            machine.stores.trouble = ""
            if machine.process is None:
                self.start(number)

    # -- steps ----------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start a worker, unless one runs."""
        if self.is_over or self.machines[number].process is not None:
            return
        worker = SimulatedWorker(
            self.machines[number], self.app, self.cluster, self.group, self.points[number], self.fatal
        )
        for spec in declare(self.app, replication=1):
            if spec.name not in self.limits:
                self.cluster.create_topic(spec.name, spec.partitions)
                self.limits[spec.name] = self.cluster.limits[spec.name] = int(
                    spec.config["max.message.bytes"]
                )
        self.started_at = self.loop.time()
        self.workers[number] = worker
        self.note("started", machine=worker.name)
        if any(step.kind == "lanes" for step in self.plan.steps):
            worker.process.spawn(worker.look_and_join())
        else:
            self.group.join(worker)

    def later(self, after: float, what: Any, *args: Any) -> None:
        """Do something after so many seconds, on no machine: whichever process asks may end before."""
        self.loop.call_later(after, what, *args, context=Context())

    def fault(self, after: float, what: Any, *args: Any) -> None:
        """Let something go wrong after so many seconds, unless all faults have ended by then."""
        kind = self._kind

        def happen() -> None:
            if not self.is_quiet:
                self._kind = kind
                self.strike(kind, args)
                what(*args)

        self.later(after, happen)

    def at_point(self, number: int, point: str, nth: int, what: Any, *args: Any) -> None:
        """Let something go wrong at the nth reach of a point from now on."""
        kind = self._kind

        def happen() -> None:
            self.coverage.add(Strike(kind, f"at {point}"))
            what(*args)

        self.points[number].plan(point, nth, happen)

    def strike(self, kind: str, what: Sequence[Any]) -> None:
        """Note in which states a fault meets lanes: those of its machine, or all. What waits for an occasion
        is noted then.
        """
        if kind not in LATER:
            workers = [self.workers[what[0]]] if kind in OF_A_MACHINE and what else self.workers
            self.coverage |= {Strike(kind, state) for each in workers for state in states(each)}

    def _answer_lost(self, fault: Fault) -> None:
        """A fault of the broker has happened to a process, if one has asked."""
        process = running()
        for worker in self.workers:
            if worker is not None and worker.process is process:
                name = fault.name.lower().replace("_", " ")
                self.coverage |= {Strike(name, state) for state in states(worker)}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something beside all else, on no machine."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.findings.append(Finding("an error that is lost", repr(error)))

    def do_kill(self, number: int, lost: int, back: float) -> None:
        """Kill a worker; a power failure takes its last writes. It is started again after `back` seconds."""
        worker = self.workers[number]
        if worker is None or self.machines[number].process is None:
            return
        worker.kill(lose_batches=lost)
        self.note("killed", machine=worker.name)
        self.workers[number] = None
        self.later(back, self.start, number)

    def do_kill_at(self, number: int, point: str, nth: int, lost: int) -> None:
        """The same at the nth reach of a point."""
        self.at_point(number, point, nth, self.do_kill, number, lost, 2.0)

    def do_lose_disk(self, number: int, back: float) -> None:
        """A worker is killed, and comes back without its disk."""
        self.do_kill(number, 0, back)
        if self.machines[number].process is None:
            self.machines[number].stores.trouble = ""
            for lane in range(self.lanes):
                self.machines[number].directory(self.lanes).destroy(lane)

    def do_freeze(self, number: int, seconds: float) -> None:
        """A worker stands still, and knows nothing of it."""
        self.machines[number].freeze()
        self.later(seconds, self.machines[number].thaw)

    def do_freeze_at(self, number: int, point: str, nth: int, seconds: float) -> None:
        """The same from the nth reach of a point."""
        self.at_point(number, point, nth, self.do_freeze, number, seconds)

    def do_cut_off(self, number: int, seconds: float) -> None:
        """No request of a machine is answered."""
        self.machines[number].is_cut_off = True
        self.later(seconds, setattr, self.machines[number], "is_cut_off", False)

    def do_restart(self, number: int, back: float) -> None:
        """Stop a worker in good order, and start it again."""
        worker = self.workers[number]
        if worker is not None and self.machines[number].answers:
            self._start_again(worker, back)

    def _start_again(self, worker: SimulatedWorker, back: float) -> None:
        number = self.machines.index(worker.machine)

        async def again() -> None:
            await worker.stop()
            await asyncio.sleep(back)
            self.start(number)

        if self.workers[number] is worker:
            self.workers[number] = None
            self.spawn(again())

    def do_rebalance(self) -> None:
        """The group decides anew."""
        self.group.rebalance()

    def do_lost_answer(self, fault: str, skip: int) -> None:
        """A fault of the broker, at the next occasion but `skip`."""
        self.cluster.inject(Fault[fault], skip=skip)

    def do_outage(self, seconds: float) -> None:
        """Nothing outside Kafka answers for some seconds."""
        self.outside.is_down = True
        self.later(seconds, setattr, self.outside, "is_down", False)

    def do_clock(self, number: int, seconds: float) -> None:
        """A machine's clock jumps, and is right again after a minute; what it wrote stays wrong."""
        self.machines[number].clock.skew += seconds
        self.later(60.0, self._clock_is_right, number)

    def _clock_is_right(self, number: int) -> None:
        self.machines[number].clock.skew = 0.0

    def do_compact(self) -> None:
        """Compact each topic that is to be compacted."""
        for topic in self.compacted:
            self.cluster.compact(topic)

    def do_retention(self) -> None:
        """Delete what is older than its topic keeps records, by their stamps."""
        for topic, seconds in self.kept.items():
            oldest = (self.clock.now() - seconds) * 1000
            for record in self.cluster.visible(topic):
                tp = TP(topic, record.partition)
                if record.timestamp >= oldest or record.offset > self.cluster.log(tp).start:
                    continue
                self.cluster.truncate(tp, record.offset + 1)

    def do_disk_full(self, number: int, seconds: float, fails: bool = False) -> None:  # noqa: FBT001, FBT002 - of a plan
        """Nothing can be written to a disk; where it `fails`, nothing can be read, either."""
        stores = self.machines[number].stores
        stores.hits = FAILING if fails else FULL
        stores.trouble = "Input/output error" if fails else "No space left on device"
        self.later(seconds, setattr, stores, "trouble", "")

    def do_damage_disk(self, number: int, back: float) -> None:
        """A worker is killed, and its stores cannot be read any more."""
        self.do_kill(number, 0, back)
        if self.machines[number].process is None:
            for lane in range(self.lanes):
                self.machines[number].directory(self.lanes).damage(lane)

    def do_refusal(self, seconds: float) -> None:
        """The broker takes nothing of what is written."""
        self.cluster.refuses = "TOPIC_AUTHORIZATION_FAILED"
        self.later(seconds, setattr, self.cluster, "refuses", "")

    def do_limit(self, topic: str, seconds: float) -> None:
        """A topic takes next to nothing."""
        if topic in self.cluster.limits:
            self.cluster.limits[topic] = 10
            self.later(seconds, self.cluster.limits.__setitem__, topic, self.limits[topic])

    def do_heal(self) -> None:
        """Messages that failed for a while succeed from now on."""
        self.outside.is_healed = True

    def do_operate(self, kind: str, twice: bool) -> None:  # noqa: FBT001 - as a plan has it
        """An operator asks the same of each letter, perhaps from two terminals."""
        if self.app.layout.operations not in self.cluster.ids:
            return
        for partition, key in sorted(letters_in(self)):
            ident = letter_id(store_key(partition, key))
            command = Operation(kind=LetterCommand(kind), letter=ident, who="ann", why="simulated", at_ms=1)
            self.operations += 1
            for terminal in range(1 + twice):
                message_id = f"{kind}-{self.operations}-{terminal}"
                headers = new_headers("operation", ident, source="desk", time=1e9, message_id=message_id)
                tp = TP(self.app.layout.operations, partition)
                self.cluster.produce(tp, ident.encode(), encode_operation(command), headers)

    # -- for parts ------------------------------------------------------------------------------------

    def post(
        self,
        message: Message,
        message_id: str,
        *,
        source: str = "outside",
        away: int = 0,
        mark: Any = None,
        age: float = 0.0,
    ) -> None:
        """A message of the outside; `away` from its own partition, with a header more, stamped `age` seconds
        ago. Where the topic was given partitions, it is in the last of them.
        """
        topic, key = type(message).TOPIC, message.key
        codec = self.app.message_codecs[topic]
        headers = new_headers(topic, key, source=source, time=1e9, message_id=message_id)
        headers.append((FINGERPRINT, codec.fingerprint))
        headers += [mark] if mark is not None else []
        partitions = len(self.cluster.logs_of(topic))
        home = self.app.layout.partition_of(key.encode())
        grown = away and partitions > self.plan.partitions
        tp = TP(topic, partitions - 1 if grown else (home + away) % partitions)
        self.cluster.produce(tp, key.encode(), codec.encode(message), headers, self.stamp(topic, age))

    def stamp(self, topic: str, age: float) -> int | None:
        """The stamp of a record that a client stamps `age` seconds ago; None: the broker stamps it."""
        return None if topic in self.stamped else max(0, int((self.clock.now() - age) * 1000))

    def seconds(self) -> float:
        """How long the run has lasted."""
        return self.loop.time() - self._began


class Shape(Protocol):
    """A part as a plan has it: data, which is printed and makes the part."""

    def part(self, run: Run) -> Part:
        """The part of a run."""


class Part:
    """A subject of a run. Its method `do_<kind>` does the steps of that kind.

    Attributes:
        codecs: those of the application; None: it needs none of its own.
    """

    codecs: MakeCodec | None = None

    def __init__(self, run: Run) -> None:
        self.run = run

    def routes(self) -> Sequence[Route]:
        """Its lines of the wiring."""
        return ()

    def resources(self) -> Mapping[str, Any]:
        """Return the resources that its handlers need, by name."""
        return {}

    def claims(self) -> ClaimChecks | None:
        """The claim checks of the application; one part may have them."""
        return None

    def end_faults(self) -> None:
        """From now on nothing goes wrong any more."""

    def accepted(self, topic: str, standings: Sequence[Standing]) -> None:
        """An operator has gone on with a topic as it is, and was told this of it."""

    def deployed(self, shape: Any) -> None:
        """A version with another shape begins."""

    def mend(self) -> bool:
        """Have a version that all can go on with, if the last one is none; whether it is another one."""
        return False

    async def finish(self) -> None:
        """All is settled, and no worker runs any more."""

    def missing(self) -> list[str]:
        """Return the work that is left; empty when all is settled."""
        return []

    def judge(self) -> list[Finding]:
        """Return the invariants that do not hold, when all is settled."""
        return []
