"""What the driver knows of a worker, it knows from the worker's log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos.evidence.worker_log import WorkerLog


class Writer:
    """Writes as a worker does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def say(self, event: str, **fields: object) -> None:
        self.raw(json.dumps({"event": event, **fields}) + "\n")

    def raw(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "worker.log")


@pytest.fixture
def log(writer: Writer) -> WorkerLog:
    return WorkerLog(writer.path)


def test_lanes_are_those_of_the_last_assignment(writer: Writer, log: WorkerLog) -> None:
    assert log.assigned == frozenset()
    writer.say("lanes_assigned", active=[1, 2])
    assert log.assigned == {1, 2}
    writer.say("lanes_assigned", active=[2])
    assert log.assigned == {2}


def test_a_lane_is_open_until_failed_or_taken_away(writer: Writer, log: WorkerLog) -> None:
    writer.say("lanes_assigned", active=[1, 2, 3])
    for lane in (1, 2, 3):
        writer.say("lane_opened", lane=lane)
    assert log.opened == {1, 2, 3}
    writer.say("lane_reopens", lane=1, error="Fenced('...')")
    writer.say("lanes_assigned", active=[1, 2])
    assert log.opened == {2}
    writer.say("lane_opened", lane=1)
    assert log.opened == {1, 2}


def test_a_lane_opening_while_leaving_is_not_open(writer: Writer, log: WorkerLog) -> None:
    writer.say("lanes_assigned", active=[1])
    writer.say("lane_opened", lane=2)
    assert log.opened == frozenset()
    writer.say("lanes_assigned", active=[1, 2])
    assert log.opened == frozenset()


@pytest.mark.parametrize("event", ["lane_stopped", "lane_quarantined"])
def test_a_lane_that_has_given_up_is_not_open(writer: Writer, log: WorkerLog, event: str) -> None:
    writer.say("lanes_assigned", active=[1])
    writer.say("lane_opened", lane=1)
    writer.say(event, lane=1)
    assert log.opened == frozenset()


def test_half_a_line_waits_for_its_end(writer: Writer, log: WorkerLog) -> None:
    writer.raw('{"event": "lanes_assigned", "act')
    assert log.assigned == frozenset()
    writer.raw('ive": [7]}\n')
    assert log.assigned == {7}


def test_lines_of_others_are_passed_over(writer: Writer, log: WorkerLog) -> None:
    writer.raw("[2026-11-21 14:40:28] [WARNING] Heartbeat failed\n{not json}\n\xff\n")
    writer.say("lanes_assigned", active=[1])
    assert log.assigned == {1}


def test_events_since_a_mark_are_those_that_came_later(writer: Writer, log: WorkerLog) -> None:
    writer.say("lane_opened", lane=1)
    mark = log.mark()
    writer.say("lane_opened", lane=2)
    writer.say("lane_reopens", lane=1)
    assert [event["lane"] for event in log.events("lane_opened", mark)] == [2]
    assert [event["lane"] for event in log.events("lane_opened")] == [1, 2]
