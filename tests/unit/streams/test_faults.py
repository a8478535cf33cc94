import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streams.errors import Fenced, OutcomeUnknown, SettingsError
from streams.ports import TP, Write
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
    store.apply([Write("t", b"a", b"1"), Write("t", b"b", b"1")], {clog: 1}, current_at=5.0)
    store.apply([Write("t", b"a", b"2"), Write("t", b"b", None), Write("t", b"c", b"2")], {clog: 2})
    store.apply([Write("t", b"a", b"3"), Write("t", b"a", b"4")], {clog: 3}, current_at=7.0)
    stores.crash(0, lose_batches=2)
    with pytest.raises(RuntimeError):
        store.get("t", b"a")
    again = stores.open(0)
    assert list(again.scan("t")) == [(b"a", b"1"), (b"b", b"1")]
    assert (again.position(clog), again.current_at()) == (1, 5.0)
