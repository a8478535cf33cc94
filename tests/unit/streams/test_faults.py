"""Faults, errors that can always be written down, and how old a copy may be."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streams.engine.life.recovery import touch
from streams.errors import Fenced, OutcomeUnknown, SettingsError, SteadfaustError, StoreTooOld, text_of
from streams.model.policy.freshness import Freshness, is_too_old
from streams.ports import TP
from streams.system import NoFaults
from streams.testing.clock import ManualClock
from streams.testing.faults import LaneKilled, Reached, ScriptedFaults, faults_from_environment
from streams.testing.store import MemoryStores

WORKER = """
import asyncio
from streams.testing.faults import faults_from_environment
async def main():
    faults = faults_from_environment()
    for _ in range(5):
        await faults.reach("committed")
        print("went on", flush=True)
asyncio.run(main())
"""


async def test_a_fault_happens_at_its_reach_and_at_no_other() -> None:
    faults = ScriptedFaults()
    faults.raise_at("sent", 2)
    faults.raise_at("begun", 1, Fenced("by the script"))
    await faults.reach("sent")
    with pytest.raises(OutcomeUnknown):
        await faults.reach("sent")
    await faults.reach("sent")
    assert faults.pending == [Reached("begun", 1)]
    with pytest.raises(Fenced, match="by the script"):
        await faults.reach("begun")
    assert faults.happened == [Reached("sent", 2), Reached("begun", 1)]
    assert faults.reached == {"sent": 3, "begun": 1}
    assert faults.pending == []


async def test_a_kill_is_not_caught_by_handlers_of_errors() -> None:
    faults = ScriptedFaults()
    faults.kill_at("applied")
    assert not issubclass(LaneKilled, Exception)
    with pytest.raises(LaneKilled):
        await faults.reach("applied")


async def test_a_pause_holds_until_it_is_resumed() -> None:
    faults = ScriptedFaults()
    pause = faults.pause_at("offsets_sent")
    lane = asyncio.ensure_future(faults.reach("offsets_sent"))
    await pause.reached()
    assert not lane.done()
    pause.resume()
    await lane


async def test_a_pause_that_is_not_reached_says_so() -> None:
    with pytest.raises(TimeoutError):
        await ScriptedFaults().pause_at("never").reached(timeout=0.01)


@pytest.mark.parametrize(
    "text", ["committed", "committed:x:kill", "committed:0:kill", ":1:kill", "sent:1:explode", ","]
)
def test_a_script_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="point:nth:action"):
        faults_from_environment({"STEADFAUST_FAULTS": text})


def test_no_script_means_no_faults() -> None:
    assert isinstance(faults_from_environment({}), NoFaults)


async def test_a_scripted_error_is_raised_and_logged(tmp_path: Path) -> None:
    log = tmp_path / "faults"
    faults = faults_from_environment(
        {"STEADFAUST_FAULTS": "sent:1:raise, sent:3:raise", "STEADFAUST_FAULTS_LOG": str(log)}
    )
    with pytest.raises(OutcomeUnknown):
        await faults.reach("sent")
    await faults.reach("sent")
    assert log.read_text() == f"sent:1:raise {os.getpid()}\n"


@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_a_worker_does_it_to_itself_and_logs_it_first(tmp_path: Path, action: str, number: int) -> None:
    log = tmp_path / "faults"
    script = {"STEADFAUST_FAULTS": f"committed:3:{action}", "STEADFAUST_FAULTS_LOG": str(log)}
    environment = {**os.environ, **script}
    with subprocess.Popen([sys.executable, "-c", WORKER], env=environment, stdout=subprocess.PIPE) as worker:
        _, status = os.waitpid(worker.pid, os.WUNTRACED)
        assert (os.WSTOPSIG(status) if action == "stop" else os.WTERMSIG(status)) == number
        assert log.read_text() == f"committed:3:{action} {worker.pid}\n"
        if action == "stop":
            worker.send_signal(signal.SIGCONT)
        lines = worker.stdout.read().splitlines()
        worker.returncode = 0
    assert len(lines) == (5 if action == "stop" else 2)


async def test_a_manual_clock_wakes_sleepers_at_their_own_time() -> None:
    clock = ManualClock(100.0)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.now()))

    tasks = [asyncio.ensure_future(sleeper("slow", 5)), asyncio.ensure_future(sleeper("twice", 2, 2))]
    await asyncio.sleep(0)
    assert clock.sleeping == 2
    await clock.advance(1)
    assert woken == []
    await clock.advance(10)
    assert woken == [("twice", 102.0), ("twice", 104.0), ("slow", 105.0)]
    assert clock.now() == 111.0
    await asyncio.gather(*tasks)


async def test_a_manual_clock_does_not_mind_a_cancelled_sleeper() -> None:
    clock = ManualClock()
    task = asyncio.ensure_future(clock.sleep(5))
    await asyncio.sleep(0)
    task.cancel()
    await clock.advance(10)
    assert clock.sleeping == 0


def test_a_power_failure_takes_whole_batches_from_the_end() -> None:
    stores, clog = MemoryStores(), TP("clog", 0)
    store = stores.open(0)
    store.apply([("t", b"a", b"1"), ("t", b"b", b"1")], {clog: 1}, current_at=5.0)
    store.apply([("t", b"a", b"2"), ("t", b"b", None), ("t", b"c", b"2")], {clog: 2})
    store.apply([("t", b"a", b"3"), ("t", b"a", b"4")], {clog: 3}, current_at=7.0)
    stores.crash(0, lose_batches=2)
    with pytest.raises(RuntimeError):
        store.get("t", b"a")
    again = stores.open(0)
    assert list(again.scan("t")) == [(b"a", b"1"), (b"b", b"1")]
    assert (again.position(clog), again.current_at()) == (1, 5.0)


FIRST, SECOND = TP("app-counts-changelog", 0), TP("app-lane-changelog", 0)


@pytest.mark.parametrize(("age", "too_old"), [(0.0, False), (50.0, False), (50.1, True), (99.0, True)])
def test_a_copy_is_too_old_after_half_the_deletion_retention(age: float, too_old: bool) -> None:
    assert is_too_old(1000.0, 1000.0 + age, delete_retention=100.0) is too_old
    assert is_too_old(1000.0, 1000.0 - age, delete_retention=100.0) is too_old, "of a clock set back"


def test_a_copy_that_is_read_too_slowly_is_given_up() -> None:
    freshness = Freshness(1000.0, 100.0)
    freshness.check(1050.0)
    with pytest.raises(StoreTooOld):
        freshness.check(1050.1)


def test_a_copy_is_current_as_of_the_question_it_reached() -> None:
    freshness = Freshness(1000.0, 100.0)
    freshness.expect(1020.0, {FIRST: 7, SECOND: 3})
    assert not freshness.has_reached({FIRST: 7, SECOND: 2}.__getitem__)
    assert (freshness.current_at, freshness.is_awaited) == (1000.0, True)
    assert freshness.has_reached({FIRST: 7, SECOND: 3}.__getitem__)
    assert (freshness.current_at, freshness.is_awaited) == (1020.0, False)
    assert not freshness.has_reached({FIRST: 9, SECOND: 9}.__getitem__), "nobody has asked again"


class Ends:
    def __init__(self, **ends: int) -> None:
        self.ends = {FIRST: ends["first"], SECOND: ends["second"]}

    async def end_offsets(self, tps: Any) -> dict[TP, int]:
        return {tp: self.ends[tp] for tp in tps}


@pytest.mark.parametrize(
    ("first", "second", "current"),
    [
        pytest.param(7, 3, True, id="at the ends"),
        pytest.param(8, 4, True, id="behind them is a marker"),
        pytest.param(9, 3, False, id="a record more"),
        pytest.param(7, 5, False, id="a record more in the other"),
    ],
)
async def test_an_idle_owner_is_current_only_if_it_has_all(first: int, second: int, current: bool) -> None:
    store = MemoryStores().open(0)
    store.apply([], {FIRST: 7, SECOND: 3}, current_at=500.0)
    cluster: Any = Ends(first=first, second=second)
    await touch(store, cluster, {FIRST: "counts", SECOND: "lane"}, ManualClock(1000.0))
    assert store.current_at() == (1000.0 if current else 500.0)


class Unshowable(Exception):
    def __init__(self, cause: Exception) -> None:
        self.cause = cause

    def __str__(self) -> str:
        raise self.cause


def test_an_error_is_told_in_its_own_words() -> None:
    assert text_of(SteadfaustError("say what to do")) == "say what to do"
    assert text_of(ValueError()) == ""


@pytest.mark.parametrize("cause", [KeyError("text"), AttributeError("text"), RecursionError()])
def test_an_error_that_cannot_be_shown_is_told_by_class(cause: Exception) -> None:
    assert text_of(Unshowable(cause)) == f"(Unshowable cannot be shown: {type(cause).__name__})"
