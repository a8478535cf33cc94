"""A lane may end at any point of its work; the next one finds everything done once."""

from __future__ import annotations

import asyncio

import pytest
from lane_checker import check, check_positions, check_store, counts
from lane_workloads import counting
from lane_worlds import FakeWorld, Post, World

from streams.errors import OutcomeUnknown
from streams.testing.broker import Fault
from streams.testing.faults import ScriptedFaults

POINTS = ("staged", "begun", "sent", "offsets_sent", "committed", "applied")
KEYS = ("a", "b", "c", "d")


def some(world: World, work: object, numbers: range) -> list[Post]:
    return [world.event(work, key, i) for i in numbers for key in KEYS]


def running(*names: str) -> set[str]:
    """Those of these coroutines that are under way."""
    tasks = asyncio.all_tasks()
    return {name for task in tasks if (name := getattr(task.get_coro(), "__qualname__", "")) in names}


async def finish(world: World, work: object, events: list[Post], stores: object = None) -> None:
    """The events are handled to the end by a new lane, and all is as it should be."""
    stores = stores or world.machine
    lane = await world.open(stores=stores)
    await world.settled(work.source)
    await lane.stop()
    await check(world, work, events)
    await check_store(world, stores=stores)


@pytest.mark.parametrize("disk", ["kept", "lost"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_lane_killed_before_its_commit_is_continued(world: World, point: str, disk: str) -> None:
    work = counting(world.name, settled=True)
    await world.start(work, max_batch=4)
    events = some(world, work, range(4))
    await world.post(*events)
    world.faults.kill_at(point, nth=3)
    await world.lane().killed()
    assert world.faults.pending == []
    more = some(world, work, range(4, 6))
    await world.post(*events, *more)
    await finish(world, work, events + more, world.machine if disk == "kept" else world.stores())


async def test_a_lane_killed_while_it_recovers_is_continued(world: World) -> None:
    work = counting(world.name)
    await world.start(work)
    events = some(world, work, range(4))
    await world.post(*events)
    lane = await world.open()
    await world.settled(work.source)
    await lane.stop()
    elsewhere = world.stores()
    world.faults.kill_at("recovering")
    await world.lane(stores=elsewhere).killed()
    assert world.faults.pending == []
    more = some(world, work, range(4, 6))
    await world.post(*more)
    await finish(world, work, events + more, elsewhere)


@pytest.mark.parametrize("lost", [1, 3])
async def test_writes_lost_to_a_power_failure_return_from_the_changelog(fake: FakeWorld, lost: int) -> None:
    work = counting(fake.name)
    await fake.start(work, max_batch=4)
    events = some(fake, work, range(4))
    await fake.post(*events)
    fake.faults.kill_at("applied", nth=4)
    await fake.lane().killed()
    fake.machine.crash(0, lose_batches=lost)
    assert fake.faults.pending == []
    await finish(fake, work, events)


@pytest.mark.parametrize("point", POINTS)
async def test_an_error_before_the_commit_makes_the_lane_reopen(world: World, point: str) -> None:
    work = counting(world.name)
    await world.start(work, max_batch=4)
    events = some(world, work, range(3))
    await world.post(*events)
    world.faults.raise_at(point, nth=2)
    lane = await world.open()
    await world.until(lambda: world.faults.pending == [])
    await world.settled(work.source)
    await lane.stop()
    assert lane.lane.reopened == 1
    await check(world, work, events)
    await check_store(world)


@pytest.mark.parametrize(
    "fault",
    [
        Fault.COMMIT_DONE,
        Fault.COMMIT_LOST,
        Fault.SEND_REFUSED,
        Fault.SEND_TORN,
        Fault.SEND_UNANSWERED,
        Fault.OFFSETS_REFUSED,
    ],
)
async def test_a_transaction_with_unknown_outcome_is_neither_lost_nor_repeated(
    fake: FakeWorld, fault: Fault
) -> None:
    work = counting(fake.name)
    await fake.start(work, max_batch=4)
    events = some(fake, work, range(5))
    await fake.post(*events)
    fake.cluster.inject(fault, skip=2)
    lane = await fake.open()
    await fake.settled(work.source)
    await lane.stop()
    assert fake.cluster.happened[fault] == 1
    assert lane.lane.reopened == 1
    await check(fake, work, events)
    await check_store(fake)


@pytest.mark.parametrize("fault", [Fault.START_FAILED, Fault.UNAVAILABLE, Fault.FETCH_DELAYED])
async def test_a_lane_that_cannot_open_tries_again(fake: FakeWorld, fault: Fault) -> None:
    work = counting(fake.name)
    await fake.start(work)
    events = some(fake, work, range(2))
    await fake.post(*events)
    fake.cluster.inject(fault, times=3)
    lane = await fake.open()
    await fake.settled(work.source)
    await lane.stop()
    assert fake.cluster.happened[fault] == 3
    await check(fake, work, events)


async def test_a_zombie_changes_nothing_and_says_that_it_was_fenced(world: World) -> None:
    work = counting(world.name)
    await world.start(work, fenced_pause=600.0)
    old = await world.open(faults=ScriptedFaults())
    events = some(world, work, range(2))
    await world.post(*events)
    await world.until(lambda: old.handled == len(events))
    await world.settled(work.source)
    new = await world.open(stores=(elsewhere := world.stores()))
    more = some(world, work, range(2, 6))
    await world.post(*more)
    await world.settled(work.source)
    await world.until(lambda: old.lane.fenced)
    await old.stop()
    await new.stop()
    assert old.lane.fenced == 1
    assert new.lane.fenced == 0
    await check(world, work, events + more)
    await check_store(world, stores=elsewhere)


@pytest.mark.parametrize("point", POINTS[:4])
async def test_a_lane_fenced_in_mid_commit_changes_nothing(world: World, point: str) -> None:
    work = counting(world.name)
    await world.start(work, fenced_pause=600.0)
    events = some(world, work, range(2))
    await world.post(*events)
    frozen = ScriptedFaults()
    pause = frozen.pause_at(point)
    old = world.lane(faults=frozen)
    await pause.reached()
    new = await world.open(stores=(elsewhere := world.stores()))
    await world.settled(work.source)
    pause.resume()
    await world.until(lambda: old.lane.fenced)
    await old.stop()
    await new.stop()
    assert frozen.pending == []
    await check(world, work, events)
    await check_store(world, stores=elsewhere)


async def test_an_owner_frozen_after_its_commit_catches_up(world: World) -> None:
    work = counting(world.name)
    await world.start(work)
    events = some(world, work, range(2))
    await world.post(*events)
    frozen = ScriptedFaults()
    pause = frozen.pause_at("committed")
    old = world.lane(faults=frozen)
    await pause.reached()
    more = some(world, work, range(2, 4))
    await world.post(*more)
    new = await world.open(stores=world.stores())
    await world.settled(work.source)
    await new.stop()
    pause.resume()
    last = some(world, work, range(4, 5))
    await world.post(*last)
    await world.until(lambda: old.lane.fenced)
    await world.settled(work.source)
    await old.stop()
    await check(world, work, events + more + last)
    await check_store(world)


async def test_stopping_lets_the_commit_in_flight_finish(world: World) -> None:
    work = counting(world.name)
    await world.start(work, transaction_timeout=900.0)
    events = some(world, work, range(2))
    await world.post(*events)
    pause = world.faults.pause_at("sent")
    lane = world.lane()
    await pause.reached()
    beside = {"Lane._read", "Lane._keep_house"}
    assert running(*beside) == beside, "they have other names now: this waits until they have ended"
    lane.lane.stop()
    await world.until(lambda: not running(*beside))  # only the commit is left
    pause.resume()
    await lane.ended()
    assert lane.lane.commits == 1
    await check_positions(world)
    assert sum((await counts(world)).values()) == lane.handled
    await finish(world, work, events)


async def test_a_commit_that_hangs_does_not_hold_up_the_stop(world: World) -> None:
    work = counting(world.name)
    await world.start(work, stop_timeout=0.1)
    events = some(world, work, range(2))
    await world.post(*events)
    pause = world.faults.pause_at("sent")
    lane = world.lane()
    await pause.reached()
    await lane.stop()
    assert lane.lane.commits == 0
    await finish(world, work, events)


@pytest.mark.parametrize("point", ["recovering"])
async def test_a_lane_can_be_stopped_while_it_opens(world: World, point: str) -> None:
    work = counting(world.name)
    await world.start(work)
    events = some(world, work, range(2))
    await world.post(*events)
    lane = await world.open()
    await world.settled(work.source)
    await lane.stop()
    pause = world.faults.pause_at(point)
    elsewhere = world.stores()
    lane = world.lane(stores=elsewhere)
    await pause.reached()
    await lane.stop()
    await finish(world, work, events, elsewhere)


async def test_an_error_that_is_not_ours_is_survived_too(fake: FakeWorld) -> None:
    work = counting(fake.name)
    await fake.start(work)
    events = some(fake, work, range(2))
    await fake.post(*events)
    fake.faults.raise_at("sent", error=OSError("the network is down"))
    fake.faults.raise_at("sent", nth=2, error=OutcomeUnknown("again"))
    lane = await fake.open()
    await fake.settled(work.source)
    await lane.stop()
    assert fake.faults.pending == []
    await check(fake, work, events)
