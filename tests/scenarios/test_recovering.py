"""Workers come and go in a recovery, and the number of lanes is changed while a worker stands still."""

import signal

import pytest

from tests.scenarios.steady import SteadyLoad
from tests.scenarios.world import LANES, SESSION_TIMEOUT, Worker, World
from tests.waiting import eventually


@pytest.mark.promise("moving-lanes")
@pytest.mark.promise("latest-assignment")
def test_workers_come_and_go_while_another_one_recovers(world: World) -> None:
    removed = world.start_worker()
    world.until_shared([removed])
    faults = world.var / "recovering.log"
    with SteadyLoad(world, "recovering") as load:
        eventually(lambda: world.settled(load.ids) > 50, "there is something to recover")
        recovering = world.start_worker(
            STEADFAUST_FAULTS="recovering:1:stop", STEADFAUST_FAULTS_LOG=str(faults)
        )
        eventually(faults.exists, "a new worker stands still in the middle of recovering its lanes")
        added = world.start_worker()
        assert removed.stop() == 0
        eventually(lambda: added.lanes() == set(range(LANES)), "the one that is left owns all lanes")
        recovering.signal(signal.SIGCONT)
        world.until_shared([recovering, added])
        between = len(load.ids)
        eventually(lambda: len(load.ids) > between + 20, "the load flows on")
    world.until_settled(load.ids)
    world.check()
    assert world.running() == [recovering, added]
    assert [worker for worker in world.workers if worker.events("lane_error")] == []


ORDERS = 300


def until_open(worker: Worker, lanes: int) -> None:
    def open_() -> bool:
        opened = {event["lane"] for event in worker.events("lane_opened")}
        return worker.lanes() == opened == set(range(lanes))

    eventually(open_, f"all {lanes} lanes open on one worker")


@pytest.mark.promise(
    "lane-count", "real workers, stopped by a signal between send and commit, 4 lanes to 2 and 2 to 4"
)
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
