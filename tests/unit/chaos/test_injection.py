"""Faults come in their turn, beside each other where that is planned, and never on what is not whole."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from chaos.errors import ChaosFailed
from chaos.injection import Injection
from chaos.kinds import Kind, Planned
from chaos.records import Happened

BOUND = 10.0


class Ground:
    """Notes when it was asked for calm."""

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.restless = False

    async def calm(self) -> None:
        self.story.append("calm")
        if self.restless:
            raise ChaosFailed("not within 90 s: all lanes are open")


class Stage:
    """Performs faults, and keeps the story."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.ground = Ground(self.story)
        self.fails: set[Kind] = set()
        self.outlasts: dict[Kind, Kind] = {}  # ends only when the other has begun
        self.said: list[str] = []
        self.load_lasts = True

    async def perform(self, planned: Planned, _: Any) -> Happened:
        self.story.append(f"begin {planned.kind}")
        if planned.kind in self.fails:
            raise ChaosFailed("nothing was seen")
        other = self.outlasts.get(planned.kind, planned.kind)
        while f"begin {other}" not in self.story:  # noqa: ASYNC110 - the story is a list
            await asyncio.sleep(0)
        self.story.append(f"end {planned.kind}")
        return Happened(
            kind=planned.kind, target="x", began=time.time(), ended=time.time(), confirmed="it was seen"
        )

    async def play(self, *planned: Planned) -> Injection:
        ground: Any = self.ground
        injection = Injection(
            planned, ground, self.said.append, lasts=lambda: self.load_lasts, perform=self.perform
        )
        async with asyncio.timeout(BOUND):
            await injection.run()
        return injection


@pytest.fixture
def stage() -> Stage:
    return Stage()


KILL = Planned(at=0.0, kind=Kind.KILL_WORKER, slot=1)
ADD = Planned(at=0.01, kind=Kind.ADD_WORKER, slot=3)
PAUSE = Planned(at=0.02, kind=Kind.PAUSE_BROKER, broker=2)


async def test_a_fault_waits_until_the_last_has_healed(stage: Stage) -> None:
    injection = await stage.play(KILL, ADD)
    assert stage.story == [
        "calm",
        "begin kill_worker",
        "end kill_worker",
        "calm",
        "begin add_worker",
        "end add_worker",
        "calm",
    ]
    assert [each.kind for each in injection.happened] == ["kill_worker", "add_worker"]
    assert injection.problems == []


async def test_a_fault_beside_another_begins_during_it(stage: Stage) -> None:
    beside = Planned(at=0.01, kind=Kind.ADD_WORKER, slot=3, beside=True)
    stage.outlasts[Kind.KILL_WORKER] = Kind.ADD_WORKER
    await stage.play(KILL, beside, PAUSE)
    assert stage.story[:3] == ["calm", "begin kill_worker", "begin add_worker"]
    assert stage.story.index("begin pause_broker") > stage.story.index("end add_worker")


async def test_a_fault_is_not_injected_before_its_time(stage: Stage) -> None:
    injection = await stage.play(Planned(at=0.2, kind=Kind.KILL_WORKER, slot=1))
    assert injection.elapsed >= 0.2


async def test_the_calm_before_a_fault_lasts_as_long_as_planned(stage: Stage) -> None:
    began = time.monotonic()
    await stage.play(Planned(at=0.0, calm=0.3, kind=Kind.KILL_WORKER, slot=1))
    assert time.monotonic() - began >= 0.3


async def test_an_unseen_fault_is_recorded_and_the_last(stage: Stage) -> None:
    stage.fails.add(Kind.PAUSE_BROKER)
    injection = await stage.play(PAUSE, KILL)
    assert [(each.kind, each.target, each.confirmed) for each in injection.happened] == [
        ("pause_broker", "broker 2", "")
    ]
    assert len(injection.problems) == 1
    assert "pause_broker" in injection.problems[0]
    assert "nothing was seen" in injection.problems[0]
    assert "begin kill_worker" not in stage.story
    assert "NOT CONFIRMED" in stage.said[-1]


async def test_what_stands_beside_a_fault_that_fails_still_heals(stage: Stage) -> None:
    stage.fails.add(Kind.ADD_WORKER)
    beside = Planned(at=0.01, kind=Kind.ADD_WORKER, slot=3, beside=True)
    injection = await stage.play(KILL, beside)
    assert "end kill_worker" in stage.story
    assert {each.kind: bool(each.confirmed) for each in injection.happened} == {
        "kill_worker": True,
        "add_worker": False,
    }


async def test_without_calm_there_are_no_more_faults(stage: Stage) -> None:
    stage.ground.restless = True
    injection = await stage.play(KILL)
    assert stage.story == ["calm"]
    assert "all lanes are open" in injection.problems[0]


async def test_faults_beyond_the_load_are_counted_as_left_out(stage: Stage) -> None:
    stage.load_lasts = False
    injection = await stage.play(KILL, ADD)
    assert injection.happened == injection.problems == []
    assert injection.left_out == 2
