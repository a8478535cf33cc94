"""What the driver knows of a worker, it knows from the worker's log."""

import json
from pathlib import Path

import pytest

from demo.worker_log import WorkerLog


def assigned(*lanes: int) -> str:
    return line("lanes_assigned", active=lanes)


def line(event: str, **fields: object) -> str:
    return json.dumps({"event": event, **fields}) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> WorkerLog:
    (tmp_path / "worker.log").touch()
    return WorkerLog(tmp_path / "worker.log")


def write(log: WorkerLog, *text: str) -> None:
    with log.path.open("a") as file:
        file.write("".join(text))


ONE, TWO = line("lane_opened", lane=1), line("lane_opened", lane=2)


@pytest.mark.parametrize(
    ("text", "owned", "opened"),
    [
        ([], set(), set()),
        ([assigned(1, 2), assigned(2)], {2}, set()),
        ([assigned(1, 2), ONE, TWO], {1, 2}, {1, 2}),
        ([assigned(1, 2), ONE, TWO, line("lane_reopens", lane=1, error="Fenced")], {1, 2}, {2}),
        ([assigned(1, 2), ONE, TWO, line("lane_reopens", lane=1, error="Fenced"), ONE], {1, 2}, {1, 2}),
        ([assigned(1, 2), ONE, TWO, assigned(1)], {1}, {1}),
        ([assigned(1), TWO, assigned(1, 2)], {1, 2}, set()),
        ([assigned(1), ONE, line("lane_stopped", lane=1)], {1}, set()),
        ([assigned(1), ONE, line("lane_quarantined", lane=1)], {1}, set()),
        (["[2026-11-21] [WARNING] Heartbeat failed\n{not json}\n\xff\n", assigned(1)], {1}, set()),
        ([assigned(1), assigned(7)[:-5]], {1}, set()),
    ],
    ids=[
        *("empty", "the last assignment", "opened", "failed", "opened again", "taken away"),
        *("opened while leaving", "stopped", "quarantined", "lines of others", "half a line"),
    ],
)
def test_lanes_are_what_the_log_says(
    log: WorkerLog, text: list[str], owned: set[int], opened: set[int]
) -> None:
    write(log, *text)
    assert (log.assigned, log.opened) == (owned, opened)


def test_half_a_line_waits_for_its_end(log: WorkerLog) -> None:
    write(log, assigned(7)[:20])
    assert log.assigned == frozenset()
    write(log, assigned(7)[20:])
    assert log.assigned == {7}


def test_events_since_a_mark_are_those_that_came_later(log: WorkerLog) -> None:
    write(log, ONE)
    mark = log.mark()
    write(log, TWO, line("lane_reopens", lane=1))
    assert [event["lane"] for event in log.events("lane_opened", mark)] == [2]
    assert [event["lane"] for event in log.events("lane_opened")] == [1, 2]
