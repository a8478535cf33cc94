"""Worker processes, with a small program in the worker's place that says what a test wants in its log."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import demo.workers
from demo.workers import DemoWorker, Workers
from tests.waiting import eventually

pytestmark = pytest.mark.stack

SAYS_AND_WAITS = """
import json, os, sys, time
for event in json.loads(os.environ["SAYS"]):
    sys.stderr.write(event + "\\n")
sys.stderr.flush()
while "ENDS" not in os.environ:
    time.sleep(60)
sys.exit(int(os.environ["ENDS"]))
"""
ASSIGNED = r'["banner", "{\"event\": \"lanes_assigned\", \"active\": [0, 1]}"]'
HALF_OPEN = ASSIGNED[:-1] + r', "{\"event\": \"lane_opened\", \"lane\": 1}"]'
OPEN = HALF_OPEN[:-1] + r', "{\"event\": \"lane_opened\", \"lane\": 0}"]'


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.workers, "_COMMAND", [sys.executable, "-c", SAYS_AND_WAITS])


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def start(tmp_path: Path, lines: list[str]) -> Iterator[Callable[..., Workers]]:
    started: list[Workers] = []

    def make(says: str = "[]", **more: str) -> Workers:
        workers = Workers(tmp_path, {"SAYS": says, "STEADFAUST_WEB_PORT": "6066", **more}, lines.append)
        started.append(workers)
        workers.start(1)
        return workers

    yield make
    for workers in started:
        workers.__exit__(None, None, None)


Start = Callable[..., Workers]


def opened(start: Start) -> Workers:
    workers = start(OPEN)
    eventually(workers.lanes_open, "lanes are open")
    return workers


def log_of(worker: DemoWorker) -> str:
    return worker.log.read_text()


def test_lanes_are_open_when_all_that_were_assigned_are(start: Start) -> None:
    assert opened(start).lanes_open() == {0, 1}


def test_a_death_is_reported_once_with_its_log(start: Start, lines: list[str]) -> None:
    workers = start(ENDS="3")
    eventually(lambda: not workers.alive, "all have ended")
    assert [workers.report_deaths(), workers.report_deaths()] == [1, 0]
    (line,) = lines
    assert line.endswith(f"ended with status 3: see {workers.running[1].log}")


def test_a_killed_worker_is_named_with_the_signal(start: Start, lines: list[str]) -> None:
    workers = start()
    os.kill(workers.running[1].process.pid, signal.SIGKILL)
    eventually(lambda: not workers.alive, "all have ended")
    assert workers.report_deaths() == 1
    assert "ended by SIGKILL" in lines[0]


def test_one_that_the_demo_ended_itself_is_no_death(start: Start) -> None:
    workers = start()
    workers.running[1].signal(signal.SIGKILL)
    eventually(lambda: not workers.alive, "all have ended")
    assert workers.report_deaths() == 0


def test_what_a_restarted_worker_said_before_does_not_count(start: Start) -> None:
    workers = opened(start)
    workers.running[1].signal(signal.SIGKILL)
    workers.running[1].process.wait()
    workers._environment["SAYS"] = HALF_OPEN
    worker = workers.start(1)
    eventually(lambda: log_of(worker).count("lane_opened") == 3, "a lane is open again")
    assert workers.lanes_open() == set()


def test_leaving_ends_all_of_them(start: Start) -> None:
    workers = start()
    workers.start(2)
    pids = [worker.process.pid for worker in workers.alive]
    assert len(pids) == 2
    with workers:
        pass
    assert not any(map(psutil.pid_exists, pids))
