"""Runs a plan with the real lanes, hosts and standbys of several workers, in a world determined by a seed."""

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
#: Simulated seconds after the last fault within which a run must settle; the second applies to plans with a
#: `limit` step, because a timer whose message is refused is postponed by up to an hour.
BOUND, LIMIT_BOUND = 1300.0, 4900.0


#: Advice in the finding for a run that does not settle.
UNSETTLED = """
      What to do: a message whose error may pass (TransientError) waits for as long as no call of its handler
      succeeds. Let the stand-in of what is outside answer in the end, or raise PermanentError."""


class _Cluster(FakeCluster):
    """Calls `struck` for each fault that happens."""

    struck: Callable[[Fault], None]

    def take(self, fault: Fault) -> bool:
        """Whether this fault happens now."""
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
        #: The lane count of workers that start from now on, and whether it has changed during the run.
        self.lanes, self.is_recut = plan.lanes, False
        self.app = self._application(self._wiring(), LaneOptions(**plan.options))
        #: Loop time at which a worker was last started.
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
        #: Topics with timestamps from the broker, and the retention of topics in seconds.
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
        #: Whether the run is over, so that no worker starts.
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
        """Give workers that start from now on another version of the application."""
        for part, shape in zip(self.parts, shapes, strict=True):
            part.deployed(shape)
        self.rewire(LaneOptions(**options))

    def rewire(self, options: LaneOptions | None = None) -> None:
        """Give workers that start from now on the present wiring and resources of the parts."""
        self.app = self._application(self._wiring(), options or self.app.lane_options)

    def recut(self, lanes: int) -> None:
        """Give workers that start from now on another lane count."""
        self.is_recut |= lanes != self.lanes
        self.lanes = lanes
        self.app = self._application(self.app.wiring, self.app.lane_options)

    def note(self, event: str, **more: Any) -> None:
        """Add a line to the trace, if it is verbose."""
        if self._verbose:
            told = " ".join(f"{name}={value}" for name, value in more.items())
            self.trace.append(f"{self.seconds():9.3f} {event} {told}".rstrip())

    def fatal(self, worker: SimulatedWorker, error: BaseException) -> None:
        """Handle the end of a worker. It is a finding unless a clone took over the worker's identity or the
        lane count changed. In these cases the worker starts again, after a clone under another name.
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
        """Do all steps, end all faults, wait until the run settles, and judge it."""
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
        """Do a step with the method `do_<kind>` of the run or of one of its parts."""
        self._kind, name = step.kind, f"do_{step.kind}"
        self.strike(step.kind, step.what)
        doer = next(each for each in (self, *self.beside, *self.parts) if hasattr(each, name))
        getattr(doer, name)(*step.what)

    async def settle(self) -> None:
        """Wait until no work is left, or add a finding if that takes too long."""
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
        """End all faults, cancel planned ones, and start all workers."""
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
        """Start a worker on a machine, unless one is running there."""
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
        """Call `what` after some seconds, outside of all machines: the calling process may end earlier."""
        self.loop.call_later(after, what, *args, context=Context())

    def fault(self, after: float, what: Any, *args: Any) -> None:
        """Call `what`, a fault, after some seconds, unless all faults have ended by then."""
        kind = self._kind

        def happen() -> None:
            if not self.is_quiet:
                self._kind = kind
                self.strike(kind, args)
                what(*args)

        self.later(after, happen)

    def at_point(self, number: int, point: str, nth: int, what: Any, *args: Any) -> None:
        """Call `what`, a fault, when a machine reaches a point for the nth time from now on."""
        kind = self._kind

        def happen() -> None:
            self.coverage.add(Strike(kind, f"at {point}"))
            what(*args)

        self.points[number].plan(point, nth, happen)

    def strike(self, kind: str, what: Sequence[Any]) -> None:
        """Record the lane states in which a fault strikes, on its machine or on all machines. Faults in LATER
        are recorded when they happen.
        """
        if kind not in LATER:
            workers = [self.workers[what[0]]] if kind in OF_A_MACHINE and what else self.workers
            self.coverage |= {Strike(kind, state) for each in workers for state in states(each)}

    def _answer_lost(self, fault: Fault) -> None:
        """Record a broker fault for the worker that made the request, if there is one."""
        process = running()
        for worker in self.workers:
            if worker is not None and worker.process is process:
                name = fault.name.lower().replace("_", " ")
                self.coverage |= {Strike(name, state) for state in states(worker)}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine concurrently, outside of all machines."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.findings.append(Finding("an error that is lost", repr(error)))

    def do_kill(self, number: int, lost: int, back: float) -> None:
        """Kill a worker, and start it again after `back` seconds. Its stores lose their last `lost` batches,
        as in a power failure.
        """
        worker = self.workers[number]
        if worker is None or self.machines[number].process is None:
            return
        worker.kill(lose_batches=lost)
        self.note("killed", machine=worker.name)
        self.workers[number] = None
        self.later(back, self.start, number)

    def do_kill_at(self, number: int, point: str, nth: int, lost: int) -> None:
        """Kill a worker when it reaches a point for the nth time."""
        self.at_point(number, point, nth, self.do_kill, number, lost, 2.0)

    def do_lose_disk(self, number: int, back: float) -> None:
        """Kill a worker, which comes back with an empty disk."""
        self.do_kill(number, 0, back)
        if self.machines[number].process is None:
            self.machines[number].stores.trouble = ""
            for lane in range(self.lanes):
                self.machines[number].directory(self.lanes).destroy(lane)

    def do_freeze(self, number: int, seconds: float) -> None:
        """Freeze a worker for some seconds; it does not notice."""
        self.machines[number].freeze()
        self.later(seconds, self.machines[number].thaw)

    def do_freeze_at(self, number: int, point: str, nth: int, seconds: float) -> None:
        """Freeze a worker when it reaches a point for the nth time."""
        self.at_point(number, point, nth, self.do_freeze, number, seconds)

    def do_cut_off(self, number: int, seconds: float) -> None:
        """Leave all requests of a machine unanswered for some seconds."""
        self.machines[number].is_cut_off = True
        self.later(seconds, setattr, self.machines[number], "is_cut_off", False)

    def do_restart(self, number: int, back: float) -> None:
        """Stop a worker cleanly, and start it again after `back` seconds."""
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
        """Trigger a rebalance."""
        self.group.rebalance()

    def do_lost_answer(self, fault: str, skip: int) -> None:
        """Inject a fault of the broker, after skipping `skip` occasions."""
        self.cluster.inject(Fault[fault], skip=skip)

    def do_outage(self, seconds: float) -> None:
        """Make the external service fail for some seconds."""
        self.outside.is_down = True
        self.later(seconds, setattr, self.outside, "is_down", False)

    def do_clock(self, number: int, seconds: float) -> None:
        """Let a machine's clock jump for a minute. Timestamps written meanwhile stay wrong."""
        self.machines[number].clock.skew += seconds
        self.later(60.0, self._clock_is_right, number)

    def _clock_is_right(self, number: int) -> None:
        self.machines[number].clock.skew = 0.0

    def do_compact(self) -> None:
        """Compact all compacted topics."""
        for topic in self.compacted:
            self.cluster.compact(topic)

    def do_retention(self) -> None:
        """Apply the topics' retention: delete records with timestamps that are too old."""
        for topic, seconds in self.kept.items():
            oldest = (self.clock.now() - seconds) * 1000
            for record in self.cluster.visible(topic):
                tp = TP(topic, record.partition)
                if record.timestamp >= oldest or record.offset > self.cluster.log(tp).start:
                    continue
                self.cluster.truncate(tp, record.offset + 1)

    def do_disk_full(self, number: int, seconds: float, fails: bool = False) -> None:  # noqa: FBT001, FBT002 - of a plan
        """Make writes to a disk fail for some seconds and, if it `fails`, reads as well."""
        stores = self.machines[number].stores
        stores.hits = FAILING if fails else FULL
        stores.trouble = "Input/output error" if fails else "No space left on device"
        self.later(seconds, setattr, stores, "trouble", "")

    def do_damage_disk(self, number: int, back: float) -> None:
        """Kill a worker, and make its stores unreadable."""
        self.do_kill(number, 0, back)
        if self.machines[number].process is None:
            for lane in range(self.lanes):
                self.machines[number].directory(self.lanes).damage(lane)

    def do_refusal(self, seconds: float) -> None:
        """Make brokers refuse all writes for some seconds."""
        self.cluster.refuses = "TOPIC_AUTHORIZATION_FAILED"
        self.later(seconds, setattr, self.cluster, "refuses", "")

    def do_limit(self, topic: str, seconds: float) -> None:
        """Reduce a topic's batch limit to 10 bytes for some seconds."""
        if topic in self.cluster.limits:
            self.cluster.limits[topic] = 10
            self.later(seconds, self.cluster.limits.__setitem__, topic, self.limits[topic])

    def do_heal(self) -> None:
        """Let messages succeed that failed temporarily until now."""
        self.outside.is_healed = True

    def do_operate(self, kind: str, twice: bool) -> None:  # noqa: FBT001 - as a plan has it
        """Send an operator's request for each dead letter, or two requests if `twice`."""
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
        """Write a message from outside, with the extra header `mark` and a timestamp `age` seconds ago.
        Unless `away` is 0, it goes to a wrong partition: that many further, or the last one if partitions
        were added.
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
        """Timestamp in ms of a record that a client wrote `age` seconds ago; None if the broker sets it."""
        return None if topic in self.stamped else max(0, int((self.clock.now() - age) * 1000))

    def seconds(self) -> float:
        """Simulated seconds since the run began."""
        return self.loop.time() - self._began


class Shape(Protocol):
    """The description of a part in a plan: printable data that can create the part."""

    def part(self, run: Run) -> Part:
        """Create the part for a run."""


class Part:
    """A part of a run, such as an application or a class of faults. Its method `do_<kind>` does the steps of
    that kind.

    Attributes:
        codecs: the codecs of the application; None if the part does not need its own.
    """

    codecs: MakeCodec | None = None

    def __init__(self, run: Run) -> None:
        self.run = run

    def routes(self) -> Sequence[Route]:
        """The part's routes for the wiring."""
        return ()

    def resources(self) -> Mapping[str, Any]:
        """The resources that the part's handlers need, by name."""
        return {}

    def claims(self) -> ClaimChecks | None:
        """The claim checks of the application. At most one part may have some."""
        return None

    def end_faults(self) -> None:
        """Called when all faults end."""

    def accepted(self, topic: str, standings: Sequence[Standing]) -> None:
        """Called when an operator has accepted a topic as it is, with what the operator was told about it."""

    def deployed(self, shape: Any) -> None:
        """Called when a version with another shape is deployed."""

    def mend(self) -> bool:
        """Replace the last version if it cannot run. Returns whether it was replaced."""
        return False

    async def finish(self) -> None:
        """Called when all is settled and no worker is running."""

    def missing(self) -> list[str]:
        """Descriptions of remaining work; empty when all is settled."""
        return []

    def judge(self) -> list[Finding]:
        """The invariants that do not hold once all is settled."""
        return []
