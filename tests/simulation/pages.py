"""What pages show while a run lasts: each can be made at any moment, what makes no progress has a reason
there, and nothing is left over when all is settled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

from streams.control.base.view import READABLE, Problem
from streams.control.handlers.handlers import paused_here
from streams.control.metrics.lane_metrics import handler_metrics, lane_metrics
from streams.control.overview.health import BEHIND_AFTER
from streams.control.overview.overview import overview, readiness
from streams.engine.life.lane import Lane
from streams.engine.life.watchdog import STUCK_AFTER
from streams.engine.staging.changes import MESSAGES, POSITIONS, QUEUES
from streams.engine.staging.keys import name_in, prefix_in
from streams.engine.staging.position import decode_position
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.queue import Reason, WaitingQueue, handler_of, read_queue
from streams.model.policy.breaker import BreakerState
from streams.model.policy.fitness import GIVE_AWAY_AFTER
from streams.ports import TP, Store
from streams.testing.simulation.plan import Finding, PlanStep
from streams.testing.simulation.run import Part, Run
from streams.testing.simulation.workers import SimulatedWorker

#: Seconds that a page may be late with a reason: a watchdog looks every 5 seconds.
LATE = 8.0
#: Seconds between looks while a run settles.
LOOK = 10.0
#: Seconds within which lanes that are given away are with another worker.
HANDED_OVER = 15.0
#: Seconds by which what is due may be late.
PASSED = 5.0


@dataclass(frozen=True)
class Pages:
    """What a plan has of pages."""

    def part(self, run: Run) -> PagesPart:
        """The part of a run."""
        return PagesPart(run)


def looks(seed: int, until: float) -> list[PlanStep]:
    """Moments at which the pages are made."""
    rng = Random(f"{seed} looks")
    return [PlanStep(rng.uniform(0, until), "look", ()) for _ in range(8)]


class PagesPart(Part):
    """The pages of a run."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._found: list[Finding] = []
        self._looked = 0.0
        self._looks = 0
        #: Since when each worker has kept lanes that it should have given away.
        self._stuck: dict[str, float] = {}
        #: Since when lanes have a position with something to handle, in the loop's time. A lane that has
        #: moved to another worker, or has opened again, has its 30 seconds anew.
        self._since: dict[tuple[TP, int, Lane | None, int], float] = {}

    def do_look(self) -> None:
        """Make each page of each worker."""
        self._looked = self.run.loop.time()
        self._looks += 1
        reasons: dict[int, list[str]] = {}
        lanes: dict[int, Lane] = {}
        moving: set[Lane | None] = set()
        for worker in self.run.workers:
            if worker is None or worker.machine.is_frozen or not worker.process.is_alive:
                continue
            view: Any = view_of(worker)
            try:
                health = readiness(view)
                overview(view)
                if self._looks % 4 == 1:  # they take longer than all others
                    list(lane_metrics(view))
                    list(handler_metrics(view))
                for number in worker.host.lanes:
                    with suppress(Problem):
                        paused_here(view, number)
            except Exception as error:  # noqa: BLE001 - whatever it is, the page is not shown
                self._found.append(Finding("each page can be shown", f"{worker.name}: {error!r}"))
                return
            why = [*health.reasons, *health.warnings]
            reasons |= dict.fromkeys(worker.host.lanes, why)
            lanes |= worker.host.lanes
            now = worker.machine.clock.now()
            moving |= {lane for lane in worker.host.lanes.values() if now - lane.last_progress <= STUCK_AFTER}
        self._unexplained(lanes, moving, reasons)
        self._not_handed_over()

    def _not_handed_over(self) -> None:
        """A worker whose machine cannot commit keeps its lanes though another one could."""
        there = [
            each for each in self.run.workers if each is not None and each.answers and each.given.members
        ]
        able = {each.name for each in there if not each.host.waited_for_machine() and not each.is_unfit}
        now = self.run.loop.time()
        stuck = [
            each.name for each in there if each.host.waited_for_machine() > GIVE_AWAY_AFTER + HANDED_OVER
        ]
        self._stuck = {name: self._stuck.get(name, now) for name in stuck if able}
        for name, since in self._stuck.items():
            if now - since > HANDED_OVER:
                where = f"{name} waits for its machine, {sorted(able)} could go on"
                self._found.append(Finding("lanes move to a worker that can commit", where))

    def _unexplained(
        self, lanes: dict[int, Lane], moving: set[Lane | None], reasons: dict[int, list[str]]
    ) -> None:
        """A lane that is the same for long, with something to handle, has a reason on its worker's page. One
        that commits elsewhere meanwhile is not stuck, only behind: several handlers may take 15 s in turn.
        """
        run, now = self.run, self.run.loop.time()
        stands = run.cluster.groups.get(run.app.layout.app_id, {})
        still: dict[tuple[TP, int, Lane | None, int], float] = {}
        for topic in run.app.sources:
            for record in run.cluster.visible(topic):
                tp = TP(topic, record.partition)
                if record.offset >= stands.get(tp, 0):
                    lane = run.app.layout.lane_of(run.app.layout.home_of(tp.partition))
                    owner = lanes.get(lane)
                    at = tp, stands.get(tp, 0), owner, 0 if owner is None else owner.reopened
                    still[at] = now if reasons.get(lane, ["no worker has it"]) else self._since.get(at, now)
        self._since = still
        for (tp, position, owner, _), since in still.items():
            if now - since > LATE + (BEHIND_AFTER if owner in moving else STUCK_AFTER):
                where = f"{tp.topic}[{tp.partition}] stands at {position} for {now - since:.0f} s"
                self._found.append(Finding("what waits has a reason that a page shows", where))

    def missing(self) -> list[str]:
        """What is left over in lanes that have nothing to do."""
        if self.run.loop.time() > self._looked + LOOK:
            self.do_look()
        if self._found:
            self.run.findings += self._found
            return ["pages"]
        if self.run.app.layout.changelog("lane") in self.run.deleted:
            return []  # rows went with it, and those that miss them are unreadable on the page
        return [
            f"lane {lane.number}: {left}"
            for worker in self.run.workers
            if worker is not None
            for lane in worker.host.lanes.values()
            if lane.state in READABLE and lane.store is not None
            for left in self._left(lane, lane.store)
        ]

    def _left(self, lane: Lane, store: Store) -> Iterator[str]:
        """Rows of bookkeeping, each of which needs a reason."""
        for local, value in store.scan(POSITIONS):
            if decode_position(value).ahead:
                yield f"the position {local!r} has messages ahead of it"
        orphans = {local for local, _ in store.scan(MESSAGES)}
        for local, value in store.scan(QUEUES):
            queue, handler = read_queue(value), handler_of(name_in(local)).decode()
            own = {each for each in orphans if each[:-8] == local}
            orphans -= own
            if len(own) != queue.length:
                yield f"the queue {local!r} has {len(own)} messages of {queue.length}"
            gate = lane.gates.get(handler)
            if gate is not None and not _is_explained(gate, local, queue, self.run.clock.now()):
                yield f"messages wait for {handler}: {queue.reason}"
        if orphans:
            yield f"messages of no queue: {sorted(orphans)}"

    def judge(self) -> list[Finding]:
        """What was found meanwhile."""
        return self._found


def _is_explained(gate: HandlerGate, local: bytes, queue: WaitingQueue, now: float) -> bool:
    """Whether what waits is tried later, or a page says what it waits for."""
    if queue.reason is Reason.PAUSED:
        return prefix_in(local) in gate.pauses
    waits = queue.reason in (Reason.DEAD, Reason.SCHEMA) or local in gate.not_yet
    return waits or queue.due_ms > (now - PASSED) * 1000 or gate.breaker.state is not BreakerState.CLOSED


def view_of(worker: SimulatedWorker) -> SimpleNamespace:
    """A worker as its pages see it."""
    return SimpleNamespace(
        application=worker.app,
        choreographed=(),
        assignment=worker.given,
        slot=0,
        stopping=False,
        url=worker.name,
        lanes=worker.host.lanes,
        standbys=worker.host.standbys,
        patience=0.0,
        unreadable_announcements=0,
        # As `silent_brokers` says it of real connections.
        own_warnings=() if worker.machine.answers else ("no broker answers",),
        throttled={},
        measured=False,
        handlers={},
        trace_url="",
        now=worker.machine.clock.now,
        stuck=worker.host.stuck,
    )
