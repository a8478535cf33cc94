"""A drain works off what waits already, and then is a pause."""

import asyncio
from typing import Any

import pytest
from lane_checker import check_store
from lane_desk import Broken, order_of
from lane_failing import HOLDING, Failing, finish, pass_time, settled, started
from lane_pausing import COUNT, KEYS, asked, commanded, reasons, some, states, told
from lane_workloads import Workload, asking, counting, deployed
from lane_worlds import FakeWorld, Post, World

from streams.engine.waiting.operations import pauses
from streams.errors import OutcomeUnknown, PermanentError, TransientError
from streams.model.operations import HandlerCommand, PauseState
from streams.model.policy.retry import RetryPolicy


async def drained(world: World, lane: Any, partitions: int = 2) -> None:
    """Wait until the handler holds what comes in so many partitions."""
    await world.until(lambda: len(lane.lane.gates[COUNT].shut) == partitions)


async def one_waits(
    world: World, work: Workload, keys: str, numbers: range, delay: float
) -> tuple[Any, list[Post]]:
    """A lane in which the first event of each key waits for its retry, and the others behind it."""
    await started(world, work, retry=RetryPolicy(immediate=0, delays=(delay,)))
    work.hooks.before = Failing(world, {(key, 0): 1 for key in keys}, TransientError("busy"))
    await world.post(*(events := some(world, work, numbers, keys)))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == len(keys) and not lane.lane.backlog)
    return lane, events


def in_partition(world: World, partition: int) -> list[str]:
    return [key for key in KEYS if world.app.layout.partition_of(key.encode()) == partition]


@pytest.mark.promise("drains")
async def test_a_drain_works_off_what_waited_and_then_holds(fake: FakeWorld) -> None:
    await started(fake, work := counting(fake.name), retry=RetryPolicy(immediate=0, delays=(2.0, 2.0)))
    work.hooks.before = failing = Failing(fake, {("a", 0): 2}, TransientError("busy"))
    home = fake.app.layout.partition_of(b"a")
    near, far = in_partition(fake, home)[1], in_partition(fake, 1 - home)[0]
    keys = f"a{near}{far}"
    await fake.post(*(events := some(fake, work, range(1), keys)))
    lane = await fake.open()
    await fake.until(lambda: lane.lane.counters.retries == 1 and not lane.lane.backlog)
    await asked(fake, HandlerCommand.DRAIN)
    await fake.post(*(more := some(fake, work, range(1, 3), keys)))
    await settled(fake, work, lane)
    await fake.until(lambda: lane.lane.gates[COUNT].pauses[b"\0%c" % (1 - home)].holds)
    assert (await states(fake))[home] is PauseState.DRAINING
    await fake.until(lambda: bool(failing.of("a", 2)))
    assert failing.of(near, 1) == failing.of(far, 1) == [], "they came after"
    assert len(failing.of("a", 0)) == 3, "worked off at its times, and what stands behind it"
    await drained(fake, lane)
    await settled(fake, work, lane)
    assert set((await states(fake)).values()) == {PauseState.DRAINED}
    assert await reasons(fake) == {"paused": 2}
    await fake.post(last := fake.event(work, "a", 3))
    await pass_time(fake, 3.0)
    assert failing.of("a", 3) == [], "then it is as paused"
    await asked(fake, HandlerCommand.RESUME)
    await fake.until(lambda: bool(failing.of("a", 3) and failing.of(near, 2) and failing.of(far, 2)))
    await finish(fake, work, lane, [*events, *more, last])
    assert [what for what, _, _ in await told(fake)] == ["drain"] * 2 + ["drained"] * 2 + ["resume"] * 2
    for key in keys:
        assert await order_of(fake, work, key) == sorted(await order_of(fake, work, key))


@pytest.mark.promise("drains")
async def test_a_drain_waits_for_what_is_under_way_and_retried(fake: FakeWorld) -> None:
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        await answered.wait()
        if work.hooks.calls.count((key, i)) == 1:
            raise TransientError("busy")

    work = asking(fake.name, ask)
    await started(fake, work, retry=RetryPolicy(immediate=0, delays=(1.0,)))
    await fake.post(event := fake.event(work, "a", 0))
    lane = await fake.open()
    await fake.until(lambda: bool(work.hooks.calls))
    await fake.post(*commanded(fake, HandlerCommand.DRAIN))
    await drained(fake, lane, 1)
    await pass_time(fake, 2.0)
    home = fake.app.layout.partition_of(b"a")
    assert lane.lane.gates[COUNT].pauses[b"\0%c" % home].state is PauseState.DRAINING
    answered.set()
    await fake.until(lambda: lane.lane.counters.retries == 1)
    assert len(lane.lane.gates[COUNT].shut) == 1
    await drained(fake, lane)
    assert work.hooks.calls == [("a", 0)] * 2
    await fake.settled(fake.app.layout.operations)
    await asked(fake, HandlerCommand.RESUME)
    await finish(fake, work, lane, [event])


@pytest.mark.promise("drains")
async def test_a_drain_goes_on_after_its_lane_has_reopened(world: World) -> None:
    lane, events = await one_waits(world, work := counting(world.name), "a", range(2), delay=4.0)
    await asked(world, HandlerCommand.DRAIN)
    world.faults.raise_at("sent", world.faults.reached["sent"] + 1, OutcomeUnknown("no answer"))
    await world.post(*(more := some(world, work, range(2, 3), "ab")))
    await world.until(lambda: lane.lane.reopened == 1)
    await world.until(lambda: lane.lane.state == "open" and len(lane.lane.gates[COUNT].shut) == 2)
    assert sorted(set(work.hooks.calls)) == [("a", i) for i in range(3)], "b came after"
    await settled(world, work, lane)
    await asked(world, HandlerCommand.RESUME)
    await world.until(lambda: ("b", 2) in work.hooks.calls)
    await finish(world, work, lane, events + more)


async def test_a_letter_that_holds_others_does_not_hold_a_drain(fake: FakeWorld) -> None:
    await started(fake, work := counting(fake.name), retry=HOLDING)
    work.hooks.before = Broken(("a", 0), error=PermanentError("never"))
    await fake.post(*some(fake, work, range(2), "a"))
    lane = await fake.open()
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await asked(fake, HandlerCommand.DRAIN)
    await drained(fake, lane)
    assert await reasons(fake) == {"dead": 1}
    await lane.stop()
    await check_store(fake)


async def test_a_drain_of_one_partition_leaves_what_it_holds(fake: FakeWorld) -> None:
    """The other one runs."""
    work = counting(fake.name)
    lane, events = await one_waits(fake, work, "a", range(1), delay=5.0)
    home = fake.app.layout.partition_of(b"a")
    await asked(fake, HandlerCommand.DRAIN, partitions=[home])
    await fake.post(*(more := some(fake, work, range(1), in_partition(fake, home)[1])))
    await pass_time(fake, 2.0)
    assert (await states(fake), work.hooks.calls) == ({home: PauseState.DRAINING}, [("a", 0)])
    await asked(fake, HandlerCommand.RESUME)
    await fake.until(lambda: len(work.hooks.calls) == 3)
    await finish(fake, work, lane, events + more)


async def test_drain_of_more_than_it_looks_at_waits(fake: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "MOST_LOOKED_AT", 2)
    lane, events = await one_waits(fake, work := counting(fake.name), KEYS, range(1), delay=5.0)
    await asked(fake, HandlerCommand.DRAIN)
    await pass_time(fake, 2.0)
    assert not lane.lane.gates[COUNT].shut
    await drained(fake, lane)
    assert len(work.hooks.calls) == 2 * len(KEYS)
    await finish(fake, work, lane, events)


@pytest.mark.parametrize("keys", ["a", KEYS], ids=["little", "more than it looks at"])
async def test_what_the_handler_takes_no_more_holds_no_drain(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setattr(pauses, "MOST_LOOKED_AT", 2)
    lane, _ = await one_waits(fake, deployed(fake.name, 1, 2), keys, range(1), delay=0.3)
    await lane.stop()
    lane = await fake.open(app=fake.cut_into(deployed(fake.name, 2), lanes=1))
    gate = lane.lane.gates[COUNT]
    await fake.until(lambda: len(gate.unroutable) == len(keys))
    await asked(fake, HandlerCommand.DRAIN)
    await drained(fake, lane)
    assert len(gate.queues) == len(keys)
