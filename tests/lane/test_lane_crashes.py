"""A lane may end at any point of its work; the next one finds everything done once."""

import asyncio
from math import inf
from typing import Any

import pytest
from lane_checker import check, check_positions, check_store, counts
from lane_scenes import POINTS, some
from lane_workloads import Workload, counting
from lane_worlds import FakeWorld, Post, Running, World
from structlog.testing import capture_logs

from streams.testing.broker import Fault
from streams.testing.faults import Pause, ScriptedFaults

pytestmark = pytest.mark.promise("loopback", "with loopback on")


def running(*names: str) -> set[str]:
    tasks = asyncio.all_tasks()
    return {name for task in tasks if (name := getattr(task.get_coro(), "__qualname__", "")) in names}


async def begun(world: World, numbers: range, **options: Any) -> tuple[Workload, list[Post]]:
    await world.start(work := counting(world.name, settled=options.pop("settled", False)), **options)
    await world.post(*(events := some(world, work, numbers)))
    return work, events


async def ends(world: World, work: Workload, events: list[Post], *lanes: Running, stores: Any = None) -> None:
    """The events are handled to the end by the last of these lanes, a new one unless given, and all is as it
    should be.
    """
    lanes = lanes or (await world.open(stores=stores),)
    await world.settled(work.source)
    for lane in lanes:
        await lane.stop()
    await check(world, work, events)
    await check_store(world, stores=stores)


def frozen_at(world: World, point: str) -> tuple[Running, Pause]:
    pause = (faults := ScriptedFaults()).pause_at(point)
    return world.lane(faults=faults), pause


@pytest.mark.promise("all-or-nothing", "six points, disk kept and lost")
@pytest.mark.parametrize("disk", ["kept", pytest.param("lost", marks=pytest.mark.smoke)])
@pytest.mark.parametrize(
    "point", [*POINTS[:3], pytest.param("offsets_sent", marks=pytest.mark.landing), *POINTS[4:]]
)
async def test_a_lane_killed_before_its_commit_is_continued(world: World, point: str, disk: str) -> None:
    work, events = await begun(world, range(4), settled=True, max_batch=4)
    world.faults.kill_at(point, nth=3)
    await world.lane().killed()
    assert world.faults.pending == []
    more = some(world, work, range(4, 6))
    await world.post(*events, *more)
    await ends(world, work, events + more, stores=world.machine if disk == "kept" else world.stores())


async def recovered(world: World) -> tuple[Workload, list[Post]]:
    work, events = await begun(world, range(4))
    lane = await world.open()
    await world.settled(work.source)
    await lane.stop()
    return work, events


@pytest.mark.promise("all-or-nothing")
@pytest.mark.landing
async def test_a_lane_killed_while_it_recovers_is_continued(world: World) -> None:
    work, events = await recovered(world)
    elsewhere = world.stores()
    world.faults.kill_at("recovering")
    await world.lane(stores=elsewhere).killed()
    assert world.faults.pending == []
    await world.post(*(more := some(world, work, range(4, 6))))
    await ends(world, work, events + more, stores=elsewhere)


async def test_a_lane_can_be_stopped_while_it_opens(world: World) -> None:
    work, events = await recovered(world)
    pause = world.faults.pause_at("recovering")
    lane = world.lane(stores=(elsewhere := world.stores()))
    await pause.reached()
    await lane.stop()
    await ends(world, work, events, stores=elsewhere)


@pytest.mark.promise("local-store")
@pytest.mark.parametrize("lost", [1, 3])
async def test_writes_lost_to_a_power_failure_return_from_the_changelog(fake: FakeWorld, lost: int) -> None:
    work, events = await begun(fake, range(4), max_batch=4)
    fake.faults.kill_at("applied", nth=4)
    await fake.lane().killed()
    fake.machine.crash(0, lose_batches=lost)
    assert fake.faults.pending == []
    await ends(fake, work, events)


@pytest.mark.promise("unknown-outcome")
@pytest.mark.parametrize("point", POINTS)
async def test_an_error_before_the_commit_makes_the_lane_reopen(world: World, point: str) -> None:
    work, events = await begun(world, range(3), max_batch=4)
    world.faults.raise_at(point, nth=2)
    lane = await world.open()
    await world.until(lambda: world.faults.pending == [])
    await ends(world, work, events, lane)
    assert lane.lane.reopened == 1


@pytest.mark.promise("unknown-outcome")
@pytest.mark.parametrize(
    "fault",
    [
        Fault.COMMIT_DONE, Fault.COMMIT_LOST, Fault.SEND_REFUSED, Fault.SEND_TORN, Fault.SEND_UNANSWERED,
        Fault.OFFSETS_REFUSED,
    ],
)  # fmt: skip
async def test_a_transaction_with_unknown_outcome_is_neither_lost_nor_repeated(
    fake: FakeWorld, fault: Fault
) -> None:
    work, events = await begun(fake, range(5), max_batch=4)
    fake.cluster.inject(fault, skip=2)
    await ends(fake, work, events, lane := await fake.open())
    assert fake.cluster.happened[fault] == 1
    assert lane.lane.reopened == 1


@pytest.mark.parametrize("fault", [Fault.START_FAILED, Fault.UNAVAILABLE, Fault.FETCH_DELAYED])
async def test_a_lane_that_cannot_open_tries_again(fake: FakeWorld, fault: Fault) -> None:
    work, events = await begun(fake, range(2))
    fake.cluster.inject(fault, times=3)
    await ends(fake, work, events, await fake.open())
    assert fake.cluster.happened[fault] == 3


@pytest.mark.promise("one-owner")
@pytest.mark.landing
async def test_a_zombie_changes_nothing_and_says_that_it_was_fenced(world: World) -> None:
    work, events = await begun(world, range(2), fenced_pause=600.0)
    old = await world.open(faults=ScriptedFaults())
    await world.until(lambda: old.handled == len(events))
    await world.settled(work.source)
    new = await world.open(stores=(elsewhere := world.stores()))
    await world.post(*(more := some(world, work, range(2, 6))))
    await world.until(lambda: old.lane.fenced)
    await ends(world, work, events + more, old, new, stores=elsewhere)
    assert (old.lane.fenced, new.lane.fenced) == (1, 0)


@pytest.mark.promise("one-owner")
@pytest.mark.parametrize("point", [*POINTS[:2], pytest.param("sent", marks=pytest.mark.landing), POINTS[3]])
async def test_a_lane_fenced_in_mid_commit_changes_nothing(world: World, point: str) -> None:
    work, events = await begun(world, range(2), fenced_pause=600.0)
    old, pause = frozen_at(world, point)
    await pause.reached()
    new = await world.open(stores=(elsewhere := world.stores()))
    await world.settled(work.source)
    pause.resume()
    await world.until(lambda: old.lane.fenced)
    await ends(world, work, events, old, new, stores=elsewhere)


@pytest.mark.promise("same-identity")
async def test_two_owners_that_fence_each_other_are_warned_of(fake: FakeWorld) -> None:
    """Such as two workers of one identity, each of which believes that the lane is its own."""
    work, events = await begun(fake, range(2), fenced_pause=2.0)
    one, other = await fake.open(), await fake.open(stores=(elsewhere := fake.stores()))
    with capture_logs() as logs:
        for i in range(20):
            await fake.post(*(more := some(fake, work, range(2 + i, 3 + i))))
            events += more
            await fake.passes(4, real=0)
        fenced = [lane for lane in (one, other) if lane.lane.measures.fenced_often(fake.clock.now())]
        assert fenced
    assert [line for line in logs if line["event"] == "lane_fenced_often"]
    await one.stop()
    await ends(fake, work, events, other, stores=elsewhere)


@pytest.mark.promise("one-owner")
async def test_an_owner_frozen_after_its_commit_catches_up(world: World) -> None:
    work, events = await begun(world, range(2))
    old, pause = frozen_at(world, "committed")
    await pause.reached()
    await world.post(*(more := some(world, work, range(2, 4))))
    new = await world.open(stores=world.stores())
    await world.settled(work.source)
    await new.stop()
    pause.resume()
    await world.post(*(last := some(world, work, range(4, 5))))
    await world.until(lambda: old.lane.fenced)
    await ends(world, work, events + more + last, old)


@pytest.mark.promise("moving-lanes")
async def test_stopping_lets_the_commit_in_flight_finish(world: World) -> None:
    # A real broker allows no more. The fake's time may run on by far while a read is under way.
    work, events = await begun(world, range(2), transaction_timeout=inf if world.is_fake else 900.0)
    pause = world.faults.pause_at("sent")
    lane = world.lane()
    await pause.reached()
    beside = {"Session._read", "Session._do_chores"}
    assert running(*beside) == beside, "they have other names now: this waits until they have ended"
    lane.lane.stop()
    await world.until(lambda: not running(*beside))  # only the commit is left
    pause.resume()
    await lane.ended()
    assert lane.lane.commits == 1
    await check_positions(world)
    assert sum((await counts(world)).values()) == lane.handled
    await ends(world, work, events)


async def test_a_commit_that_hangs_does_not_hold_up_the_stop(world: World) -> None:
    work, events = await begun(world, range(2), stop_timeout=0.1)
    pause = world.faults.pause_at("sent")
    lane = world.lane()
    await pause.reached()
    await lane.stop()
    assert lane.lane.commits == 0
    await ends(world, work, events)
