"""The number of lanes is changed while a worker of before stands still, in the middle of a transaction."""

import signal

import pytest

from tests.scenarios.world import SESSION_TIMEOUT, Worker, World
from tests.waiting import eventually

ORDERS = 300


def until_open(worker: Worker, lanes: int) -> None:
    def open_() -> bool:
        opened = {event["lane"] for event in worker.events("lane_opened")}
        return worker.lanes() == opened == set(range(lanes))

    eventually(open_, f"all {lanes} lanes open on one worker")


@pytest.mark.parametrize(
    ("before", "after"),
    [(4, 2), pytest.param(2, 4, marks=pytest.mark.verify("another number of lanes: fewer stands for more"))],
)
def test_a_worker_that_wakes_under_another_cut_is_fenced(world: World, before: int, after: int) -> None:
    faults = world.var / f"faults-{before}.log"
    frozen = world.start_worker(
        STEADFAUST_LANES=str(before), STEADFAUST_FAULTS="sent:9:stop", STEADFAUST_FAULTS_LOG=str(faults)
    )
    until_open(frozen, before)
    ids = world.place(f"cut-{before}", ORDERS)
    eventually(faults.exists, "the worker stopped itself between send and commit")

    new = world.start_worker(STEADFAUST_LANES=str(after))
    until_open(new, after)
    world.until_settled(ids)
    assert [event["before"] for event in new.events("cut_recorded")] == [before]

    frozen.signal(signal.SIGCONT)
    assert frozen.process.wait(SESSION_TIMEOUT * 10) == 1
    assert any("Fenced" in event["error"] for event in frozen.events("lane_reopens"))
    assert str(after) in frozen.events("worker_stops")[0]["error"]
    more = world.place(f"after-{before}", 30)
    world.until_settled(more)
    assert not new.events("lane_reopens")
    world.check()
