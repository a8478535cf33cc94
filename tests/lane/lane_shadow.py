"""The model of the protocol, taken along while real lanes run on the fake broker.

Two lanes of one number stand still at each point where the model has a step, until the test lets one go on.
After each move the model must have a state, reachable by steps of that kind alone, that looks just the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from lane_workloads import Workload
from lane_worlds import FakeWorld

from chaos.model.kafka import Kafka, ModelTransaction, stable
from chaos.model.protocol import ProtocolModel, State
from chaos.model.spec import Spec
from chaos.model.worker import ModelWorker, Phase
from streams.errors import PositionLost
from streams.lane.lane import Lane
from streams.lane.state import LaneState
from streams.ports import TP, Ports
from streams.staging.changes import POSITIONS
from streams.testing.clock import ManualClock
from streams.testing.store import MemoryStores

NAMES = "AB"
#: Steps that the model takes only when the test has made them happen.
MADE = (
    "is killed",
    "loses power",
    "has lost the lane",
    "follows",
    "has an error",
    "times out",
    "arrives late",
)
TURNS = 300


class SeenWorker(NamedTuple):
    """What shows of a worker."""

    phase: str
    row: int
    inbox: int
    position: int


class Seen(NamedTuple):
    """What shows of a state, in the model and in the world alike."""

    outputs: tuple[int, ...]
    offset: int
    transaction: str
    pending_outputs: int
    workers: tuple[SeenWorker, SeenWorker]


class Gates:
    """Points at which a lane stands until it is let go."""

    POINTS = frozenset(("ends", "positions", "staged", "sent", "offsets_sent", "committed"))

    def __init__(self) -> None:
        self.held: dict[str, asyncio.Event] = {}

    async def reach(self, point: str) -> None:
        if point in self.POINTS:
            await self.held.setdefault(point, asyncio.Event()).wait()

    def open(self) -> None:
        for event in self.held.values():
            event.set()
        self.held.clear()


class GatedCluster:
    """The cluster as one lane sees it, with a gate before each question of its opening."""

    def __init__(self, cluster: Any, gates: Gates) -> None:
        self._cluster = cluster
        self._gates = gates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def end_offsets(self, tps: Any) -> Any:
        if not any(tp.topic.endswith("-announcements") for tp in tps):  # one cut: nothing is new there
            await self._gates.reach("ends")
        return await self._cluster.end_offsets(tps)

    async def committed(self, group: str, tps: Any) -> Any:
        await self._gates.reach("positions")
        return await self._cluster.committed(group, tps)


class RealWorker:
    """A machine with its disk and its clock, and the lane that runs on it, if any."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world
        self.stores = MemoryStores()
        self.clock = ManualClock()
        self.gates = Gates()
        self.lane: Lane | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        return self.task is not None and not self.task.done()

    def start(self) -> None:
        self.gates = Gates()
        cluster: Any = GatedCluster(self._world.cluster, self.gates)
        self.lane = Lane(self._world.app, 0, Ports(cluster, self.stores, self.clock, self.gates))
        self.task = asyncio.create_task(self.lane.run())

    async def go_on(self) -> None:
        """To the next gate; one that waits after an error has its time pass."""
        if self.gates.held:
            self.gates.open()
        else:
            await self.clock.advance(10.0)

    async def kill(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.lane = self.task = None

    def seen(self) -> SeenWorker:
        phase = self._phase()
        store = self.lane.store if self.runs and self.lane else None
        looked = store or self.stores.open(0)
        try:
            rows = [json.loads(value[8:])["n"] for _, value in looked.scan("counts")]
            inbox = [name for name in looked.tables() if name.startswith("_inbox-")]
            positions = [int(value.split()[0]) for _, value in looked.scan(POSITIONS)]
            entries = sum(len(list(looked.scan(name))) for name in inbox)
            return SeenWorker(phase, sum(rows), entries, sum(positions))
        finally:
            if store is None:
                looked.close()

    def _phase(self) -> str:
        if self.lane is None or self.task is None:
            return "idle"
        if self.task.done():
            return "stopped" if isinstance(self.task.exception(), PositionLost) else "idle"
        if self.lane.state is LaneState.BACKING_OFF:
            return "opening 0"
        if self.lane.state is LaneState.OPENING:
            return {"ends": "opening 1", "positions": "opening 2"}.get(
                next(iter(self.gates.held), ""), "recovering"
            )
        if "committed" in self.gates.held:
            return "answered"
        return "sending" if {"sent", "offsets_sent"} <= self.gates.held.keys() else "ready"


def seen_worker(number: int, worker: ModelWorker, kafka: Kafka) -> SeenWorker:
    phase = worker.phase.name.lower()
    if worker.phase is Phase.OPENING:
        phase = "recovering" if worker.ends is not None else f"opening {worker.opened}"
    elif worker.phase is Phase.ENDING and number in kafka.answers:
        phase = "answered"
    store = worker.store
    return SeenWorker(phase, len(store.row), len(store.inbox), store.position)


def seen(kafka: Kafka, *workers: ModelWorker) -> Seen:
    """What shows of a state of the model."""
    visible = kafka.outputs[: stable(kafka.outputs)]
    transaction = kafka.ids[0].transaction
    a, b = (seen_worker(number, worker, kafka) for number, worker in enumerate(workers))
    return Seen(
        outputs=tuple(i for entry in visible for i in entry.ids),
        offset=kafka.offset,
        transaction={ModelTransaction.EMPTY: "none", ModelTransaction.ONGOING: "open"}.get(
            transaction, "ending"
        ),
        pending_outputs=sum(len(entry.ids) for entry in kafka.outputs if entry.pending is not None),
        workers=(a, b),
    )


class Shadow:
    """The states in which the model may be, by all that was seen."""

    def __init__(self, spec: Spec) -> None:
        self._protocol = ProtocolModel(spec)
        self.states = {self._protocol.initial()}

    def follow(self, may_happen: Callable[[str], bool], looks: Seen) -> None:
        """Take every step that may happen, as long as no more is committed than was seen; keep the states
        that look so.
        """
        found, todo = set(self.states), list(self.states)
        while todo:
            for step in self._protocol.steps(todo.pop()):
                if step.state in found or not may_happen(step.label):
                    continue
                if self._protocol.values(step.state)[0].decided_offset <= looks.offset:
                    found.add(step.state)
                    todo.append(step.state)
        self.states = {state for state in found if self._seen(state) == looks}
        near = sorted({self._seen(state) for state in found})
        assert self.states, f"the model has no such state: {looks}; it has {near}"

    def _seen(self, state: State) -> Seen:
        return seen(*self._protocol.values(state))


class Walk:
    """Two real lanes of one number, with the model beside them."""

    def __init__(self, world: FakeWorld, work: Workload, spec: Spec) -> None:
        self._world = world
        self._work = work
        self.workers = (RealWorker(world), RealWorker(world))
        self._messages = spec.messages
        self.shadow = Shadow(spec)
        self.phases: set[str] = set()
        self._looks: Seen | None = None

    async def begin(self) -> None:
        for message in self._messages:
            post = self._world.event(self._work, "k", message, message_id=f"m{message}")
            await self._world.post(post)

    async def compare(self, made: Callable[[str], bool] = lambda _: False) -> None:
        """Let everything go as far as it can, and look whether the model does the same. Kafka's steps may
        happen, and those of workers that have changed; of what is not the protocol's own, what was `made`.
        """
        await self._world.turns(TURNS)
        looks = await self._look()
        changed = [
            NAMES[n] for n in (0, 1) if self._looks is None or looks.workers[n] != self._looks.workers[n]
        ]
        self._looks = looks
        self.phases |= {worker.phase for worker in looks.workers}

        def may_happen(label: str) -> bool:
            if any(text in label for text in MADE):
                return made(label)
            return label[:2] not in ("A ", "B ") or label[0] in changed

        self.shadow.follow(may_happen, looks)

    async def _look(self) -> Seen:
        cluster, app = self._world.cluster, self._world.app
        source = TP(self._work.source, 0)
        positions = await cluster.committed(app.layout.app_id, [source])
        transaction = cluster.producer(app.layout.transactional_id(0)).transaction
        out = TP(self._work.output, 0)
        pending = [
            e for e in cluster.entries(out) if transaction is not None and e.transaction is transaction
        ]
        return Seen(
            outputs=tuple(json.loads(record.value or b"")["i"] for record in cluster.visible(out.topic)),
            offset=positions.get(source, 0),
            transaction="none" if transaction is None else "open",
            pending_outputs=len(pending),
            workers=(self.workers[0].seen(), self.workers[1].seen()),
        )
