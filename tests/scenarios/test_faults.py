"""Two workers and what can happen to them in the middle of the load."""

import signal
import time

import pytest

from tests.scenarios.world import LANES, Worker, World
from tests.waiting import BOUND, eventually

ORDERS = 900

KILLED = pytest.mark.verify(
    "a killed worker: one with an empty disk and one between send and commit cover it"
)


def two_workers(world: World) -> tuple[Worker, Worker]:
    pair = world.start_worker(), world.start_worker()
    world.until_shared(pair)
    return pair


@pytest.mark.promise("all-or-nothing", "restarted on the same directory, on an empty one, not at all")
@pytest.mark.parametrize(
    "after",
    [
        pytest.param("same directory", marks=KILLED),
        "empty directory",
        pytest.param("not at all", marks=KILLED),
    ],
)
def test_a_worker_killed_in_mid_load_changes_no_outcome(world: World, after: str) -> None:
    survivor, victim = two_workers(world)
    ids = world.load(f"killed-{after.replace(' ', '-')}", ORDERS)
    victim.signal(signal.SIGKILL)
    killed = time.time()
    if after == "empty directory":
        world.wipe_stores_of_ended(survivor)
    if after != "not at all":
        heir = world.start_worker()
        world.until_shared([survivor, heir])
    world.until_settled(ids)
    assert world.settled_since(ids, killed), "the fault came too late to prove anything"
    if after == "not at all":
        assert survivor.lanes() == set(range(LANES))
    if after == "empty directory":
        assert any(event["recovered"] > 0 for event in heir.events("lane_opened"))
    world.check()


@pytest.mark.promise("one-owner")
def test_a_zombie_that_wakes_with_a_transaction_open_is_fenced(world: World) -> None:
    survivor = world.start_worker()
    world.until_shared([survivor])
    faults = world.var / "faults.log"
    zombie = world.start_worker(STEADFAUST_FAULTS="sent:3:stop", STEADFAUST_FAULTS_LOG=str(faults))
    world.until_shared([survivor, zombie])
    ids = world.place("open-transaction", ORDERS)
    eventually(faults.exists, "the zombie stopped itself between send and commit")
    world.until_settled(ids)
    zombie.signal(signal.SIGCONT)
    eventually(
        lambda: any("Fenced" in event["error"] for event in zombie.events("lane_reopens")),
        "the zombie was fenced",
    )
    world.until_settled(ids)
    world.check()


@pytest.mark.promise("all-or-nothing")
@pytest.mark.parametrize(
    "point", [pytest.param("begun", marks=KILLED), "sent", pytest.param("committed", marks=KILLED)]
)
def test_a_worker_killed_in_the_commit_protocol_changes_no_outcome(world: World, point: str) -> None:
    faults = world.var / f"faults-{point}.log"
    worker = world.start_worker(STEADFAUST_FAULTS=f"{point}:5:kill", STEADFAUST_FAULTS_LOG=str(faults))
    world.until_shared([worker])
    ids = world.place(f"killed-{point}", 100)
    assert worker.process.wait(BOUND) == -signal.SIGKILL
    assert point in faults.read_text()
    world.start_worker()
    world.until_settled(ids)
    world.check()
