"""Chains: messages that a lane sends itself hop by hop, over a thin line, beside a client that writes where
the lane does. Each hop takes effect once, in the order of the log.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from streams.control.overview.health import held_up
from streams.engine.life.lane import Lane
from streams.engine.life.state import LaneState
from streams.engine.way.held_up import SAID_AFTER
from streams.errors import Fenced, TransactionFailed
from streams.model.choreography import Route, on
from streams.model.envelope import FINGERPRINT, new_headers
from streams.model.handlers import Service
from streams.model.message import Row
from streams.model.outcome import Outcome, outcome
from streams.model.table import Table
from streams.ports import TP, Outgoing
from streams.testing.simulation.judge import rows
from streams.testing.simulation.machines import running
from streams.testing.simulation.plan import Finding, PlanStep
from streams.testing.simulation.run import Part, Run
from tests.keyed import Keyed

#: Hops of a chain, more than a transaction can take on a thin line; seconds that a record takes there.
#: A lane's first transaction also says where each of its partitions begins, and cannot be smaller: 26 records
#: with one message, for one lane of four partitions. That takes 13 of the 15 seconds of a transaction, and
#: answers take 1.5 more at most. On a line where it does not fit, no lane would ever go on.
LONG, THIN = 40, 0.5
#: What writes twice under one id.
TWIN = "twin"


class Begun(Keyed, frozen=True, kw_only=True):
    """A chain of so many hops begins."""

    TOPIC: ClassVar[str] = "chains.begun.v1"
    id: str
    hops: int


class Hop(Keyed, frozen=True, kw_only=True):
    """A hop of a chain, after which so many are left."""

    TOPIC: ClassVar[str] = "chains.hop.v1"
    SAME_KEY = True
    id: str
    left: int

    @property
    def name(self) -> str:
        """What its effect is called."""
        return f"{self.id}-{self.left}"


class Hopped(Row, frozen=True):
    """The hops under a key, in order."""

    names: tuple[str, ...] = ()


HOPPED = Table("hopped", Hopped)


@dataclass(frozen=True)
class Chains:
    """What a plan has of chains."""

    def part(self, run: Run) -> ChainsPart:
        """The part of a run."""
        return ChainsPart(run)


def is_thin(seed: int) -> bool:
    """Whether the run of a seed has a thin line, in one of thirty. Little else would get through it."""
    return Random(f"{seed} thin").random() < 0.03


def plan(seed: int) -> tuple[list[Chains], list[PlanStep]]:
    """Chains of a seed, by numbers of their own."""
    rng = Random(f"{seed} chains")
    if is_thin(seed):
        return [Chains()], [
            PlanStep(0.0, "thin", (THIN,)),
            PlanStep(rng.uniform(2, 20), "begin", ("a", "long", LONG)),
        ]
    if rng.random() > 0.08:
        return [], []
    steps = _of_one_id(Random(f"{seed} one id"))
    for number in range(rng.choice((4, 10))):
        at, key = rng.uniform(5, 40), rng.choice("ab")
        steps.append(PlanStep(at, "begin", (key, f"c{number}", rng.choice((1, 2, 4)))))
        steps += [
            PlanStep(at, "intrude", (key, f"x{number}", nth)) for nth in range(rng.choice((0, 1, 2, 2, 3)))
        ]
    return [Chains()], [*steps, *_holds(Random(f"{seed} holds"))]


def _of_one_id(rng: Random) -> list[PlanStep]:
    """In half of these runs a client writes twice at once under one id, each time with a hop left."""
    if rng.random() < 0.5:
        return []
    at, key = rng.uniform(5, 40), rng.choice("ab")
    return [PlanStep(at, "intrude", (key, TWIN, nth, 1)) for nth in range(2)]


def _holds(rng: Random) -> list[PlanStep]:
    """In half of these runs another client has a transaction open for some seconds."""
    if rng.random() < 0.5:
        return []
    return [PlanStep(rng.uniform(5, 25), "hold", (rng.choice("ab"), "held", rng.choice((3.0, 13.0))))]


class ChainsPart(Part):
    """The chains of a run."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        #: Hops that were handled last by a lane which had not read a record of the other client.
        self._unaware: set[str] = set()
        self._is_held = False
        self._unsaid: list[str] = []

    def routes(self) -> Sequence[Route]:
        """Two handlers."""
        service = Service("chains")

        @service.handler(sends=(Hop,))
        def begin(event: Begun) -> Outcome:
            return outcome(send=[Hop(k=event.k, id=event.id, left=event.hops - 1)])

        @service.handler(sends=(Hop,), row=HOPPED)
        def hop(event: Hop, row: Hopped | None) -> Outcome:
            (self._unaware.discard if self._is_aware(event.k) else self._unaware.add)(event.name)
            more = [Hop(k=event.k, id=event.id, left=event.left - 1)] if event.left else []
            return outcome(row=Hopped((*(row or Hopped()).names, event.name)), send=more)

        return [on(Begun, begin), on(Hop, hop)]

    def _is_aware(self, key: str) -> bool:
        """Whether the lane that runs now knows that others write where it does."""
        partition = self.run.app.layout.partition_of(key.encode())
        process = running()
        lanes = [
            worker.host.lanes.get(worker.app.layout.lane_of(partition))
            for worker in self.run.workers
            if worker is not None and worker.process is process
        ]
        return any(lane is not None and TP(Hop.TOPIC, partition) in lane.foreign for lane in lanes)

    def do_thin(self, seconds: float) -> None:
        """Each record that is sent takes so many seconds, for good."""
        for machine in self.run.machines:
            machine.per_record = seconds

    def do_begin(self, key: str, own: str, hops: int) -> None:
        """A client begins a chain."""
        self.run.post(Begun(k=key, id=own, hops=hops), own)

    def do_intrude(self, key: str, own: str, nth: int, left: int = 0) -> None:
        """A client writes where the lane writes, each time with the same id."""
        self.run.post(Hop(k=key, id=f"{own}-{nth}", left=left), own)

    def do_hold(self, key: str, own: str, seconds: float) -> None:
        """Another client begins a chain in a transaction, and commits that after so many seconds."""
        self._is_held = True
        self.run.spawn(self._hold(Begun(k=key, id=own, hops=1), seconds))

    async def _hold(self, message: Begun, seconds: float) -> None:
        run, key = self.run, message.key.encode()
        codec = run.app.message_codecs[Begun.TOPIC]
        headers = new_headers(Begun.TOPIC, message.key, source="outside", time=1e9, message_id=message.id)
        headers.append((FINGERPRINT, codec.fingerprint))
        tp = TP(Begun.TOPIC, run.app.layout.partition_of(key))
        client = run.cluster.transactions("another-client")
        with suppress(TransactionFailed, Fenced):
            await client.start()
            await client.begin()
            await client.send({tp: [Outgoing(key, codec.encode(message), headers)]})
            await self._look(tp, seconds)
            await client.commit()
        self._is_held = False

    async def _look(self, tp: TP, seconds: float) -> None:
        """A lane that waits for the open transaction for long says so on its page."""
        seen: tuple[object, int] = (None, 0)
        for _ in range(int(seconds)):
            await asyncio.sleep(1.0)
            lane = self._lane_at(tp)
            watch = None if lane is None else lane.measures.held_up
            seen = (watch, seen[1] + 1 if watch is seen[0] else 0)
            if lane is not None and watch is not None and seen[1] > SAID_AFTER + 3:
                view: Any = lane
                if not any(str(tp.partition) in line for line in held_up(view)):
                    self._unsaid.append(f"lane {lane.number} waits for an open transaction in {tp}")

    def _lane_at(self, tp: TP) -> Lane | None:
        """The open lane that has handled all before the last stable offset of a partition."""
        run = self.run
        position = run.cluster.groups.get(run.app.layout.app_id, {}).get(tp, 0)
        log = run.cluster.log(tp)
        if not position == log.stable < log.end:
            return None
        for worker in run.workers:
            if worker is not None and worker.machine.answers:
                lane = worker.host.lanes.get(worker.app.layout.lane_of(tp.partition))
                if lane is not None and lane.state is LaneState.OPEN:
                    return lane
        return None

    def missing(self) -> list[str]:
        """Hops that have had no effect."""
        if self._is_held:
            return ["another client has a transaction open"]
        has, logged = self._has(), self._logged()
        left = [f"{key} has {len(has[key])} hops of {len(logged[key])}" for key in logged]
        return [each for each, key in zip(left, logged, strict=True) if len(has[key]) < len(logged[key])]

    def judge(self) -> list[Finding]:
        """Each hop takes effect once, in the order of the log."""
        return [*self._judged()]

    def _judged(self) -> Iterator[Finding]:
        for where in self._unsaid[:1]:
            yield Finding("what waits has a reason on its page", where)
        has, values = self._has(), [json.loads(r.value or b"") for r in self.run.cluster.visible(Begun.TOPIC)]
        begun = {each["id"]: each for each in values}
        for key, logged in self._logged().items():
            if Counter(has[key]) != Counter(logged):
                yield Finding("a message takes effect once", f"{key}: {has[key]} of {logged}")
            aware = [[name for name in names if name not in self._unaware] for names in (has[key], logged)]
            twins = [[name for name in names if name.startswith(TWIN)] for names in aware]
            if twins[0] != twins[1]:
                yield Finding("each record of one id has its turn", f"{key}: {has[key]} of {logged}")
            if aware[0] != aware[1]:
                yield Finding("effects are in the order of the log", f"{key}: {has[key]} of {logged}")
            for own, chain in begun.items():
                hops = [name for name in logged if name.startswith(f"{own}-")]
                if chain["k"] == key and hops != [f"{own}-{n}" for n in reversed(range(chain["hops"]))]:
                    yield Finding("what is sent is what was decided", f"{own}: {hops}")

    def _has(self) -> dict[str, list[str]]:
        found = {key: json.loads(data)["names"] for (key, _), data in rows(self.run, HOPPED.name).items()}
        return defaultdict(list, found)

    def _logged(self) -> dict[str, list[str]]:
        """The names of hops, by key, in the order of the log."""
        found: dict[str, list[str]] = defaultdict(list)
        for record in self.run.cluster.visible(Hop.TOPIC):
            value = json.loads(record.value or b"")
            found[value["k"]].append(f"{value['id']}-{value['left']}")
        return found
