"""Faults come in their turn, beside each other where that is planned, and never on what is not whole."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.injection import Injection
from chaos.rig.kinds import FaultKind, Planned
from chaos.rig.records import Happened
from chaos.rig.waiting import ChaosFailed


class Stage:
    """Performs faults in no time, and keeps the story. A wait for a time moves the clock there."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.now = 1000.0
        self.slept: list[float] = []
        self.restless = False
        self.fails: set[FaultKind] = set()
        self.outlasts: dict[FaultKind, FaultKind] = {}  # ends only when the other has begun
        self.lines: list[str] = []
        self.load_lasts = True

    async def calm(self) -> None:
        self.story.append("calm")
        if self.restless:
            raise ChaosFailed("not within 90 s: all lanes are open")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now += seconds
        self.slept.append(seconds)

    async def perform(self, planned: Planned, _: Any) -> Happened:
        self.story.append(f"begin {planned.kind}")
        if planned.kind in self.fails:
            raise ChaosFailed("nothing was seen")
        other = self.outlasts.get(planned.kind, planned.kind)
        while f"begin {other}" not in self.story:  # noqa: ASYNC110 - the story is a list
            await asyncio.sleep(0)
        self.story.append(f"end {planned.kind}")
        return Happened(kind=planned.kind, target="x", began=1.0, ended=2.0, confirmed="it was seen")

    async def play(self, *planned: Planned) -> Injection:
        injection = Injection(
            planned, self, self.lines.append, lasts=lambda: self.load_lasts, perform=self.perform
        )
        await injection.run()
        return injection


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    tasks = {name: getattr(asyncio, name) for name in ("create_task", "gather")}
    monkeypatch.setattr("chaos.injection.asyncio", SimpleNamespace(sleep=stage.sleep, **tasks))
    monkeypatch.setattr("chaos.injection.time", SimpleNamespace(time=lambda: stage.now))
    return stage


KILL = Planned(at=0.0, kind=FaultKind.KILL_WORKER, slot=1)
ADD = Planned(at=0.01, kind=FaultKind.ADD_WORKER, slot=3)
BESIDE = Planned(at=0.01, kind=FaultKind.ADD_WORKER, slot=3, beside=True)
PAUSE = Planned(at=0.02, kind=FaultKind.PAUSE_BROKER, broker=2)


async def test_a_fault_waits_until_the_last_has_healed(stage: Stage) -> None:
    injection = await stage.play(KILL, ADD)
    kill, add = ["begin kill_worker", "end kill_worker"], ["begin add_worker", "end add_worker"]
    assert stage.story == ["calm", *kill, "calm", *add, "calm"]
    assert [each.kind for each in injection.happened] == ["kill_worker", "add_worker"]
    assert injection.problems == []


async def test_a_fault_beside_another_begins_during_it(stage: Stage) -> None:
    stage.outlasts[FaultKind.KILL_WORKER] = FaultKind.ADD_WORKER
    await stage.play(KILL, BESIDE, PAUSE)
    assert stage.story[:3] == ["calm", "begin kill_worker", "begin add_worker"]
    assert stage.story.index("begin pause_broker") > stage.story.index("end add_worker")


@pytest.mark.parametrize(
    ("when", "waits"),
    [({"at": 0.25}, 0.25), ({"at": 0.0, "calm": 0.5}, 0.5), ({"at": 0.25, "calm": 0.5}, 0.5)],
    ids=["its time", "its calm", "the later of both"],
)
async def test_a_fault_waits_until_it_is_due(stage: Stage, when: dict[str, float], waits: float) -> None:
    injection = await stage.play(Planned(kind=FaultKind.KILL_WORKER, slot=1, **when))
    assert (stage.slept, injection.elapsed) == ([waits], waits)


async def test_an_unseen_fault_is_recorded_and_the_last(stage: Stage) -> None:
    stage.fails.add(FaultKind.PAUSE_BROKER)
    injection = await stage.play(PAUSE, KILL)
    (unseen,) = injection.happened
    assert (unseen.kind, unseen.target, unseen.confirmed) == ("pause_broker", "broker 2", "")
    assert injection.problems == ["pause_broker at 0 s: nothing was seen"]
    assert "begin kill_worker" not in stage.story
    assert "NOT CONFIRMED" in stage.lines[-1]


async def test_what_stands_beside_a_fault_that_fails_still_heals(stage: Stage) -> None:
    stage.fails.add(FaultKind.ADD_WORKER)
    injection = await stage.play(KILL, BESIDE)
    assert "end kill_worker" in stage.story
    seen = {each.kind: bool(each.confirmed) for each in injection.happened}
    assert seen == {"kill_worker": True, "add_worker": False}


async def test_without_calm_there_are_no_more_faults(stage: Stage) -> None:
    stage.restless = True
    injection = await stage.play(KILL)
    assert stage.story == ["calm"]
    assert "all lanes are open" in injection.problems[0]


async def test_faults_beyond_the_load_are_counted_as_left_out(stage: Stage) -> None:
    stage.load_lasts = False
    injection = await stage.play(KILL, ADD)
    assert injection.happened == injection.problems == []
    assert injection.left_out == 2
