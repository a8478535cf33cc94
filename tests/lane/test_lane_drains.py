"""A drain works off what waits already, and then is a pause."""

from __future__ import annotations

import asyncio

import pytest
from lane_checker import check_store
from lane_desk import Broken, order_of
from lane_failing import (
    HOLDING,
    LATER,
    Failing,
    finish,
    pass_time,
    settled,
    started,
)
from lane_pausing import COUNT, KEYS, asked, commanded, reasons, some, states, told
from lane_workloads import asking, counting, deployed
from lane_worlds import FakeWorld, World

from streams.errors import OutcomeUnknown, PermanentError, TransientError
from streams.model.operations import HandlerCommand, PauseState
from streams.operator import pauses
from streams.policy.retry import RetryPolicy


async def test_a_drain_works_off_what_waited_and_then_holds(fake: FakeWorld) -> None:
    world = fake
    await started(world, work := counting(world.name), retry=RetryPolicy(immediate=0, delays=(2.0, 2.0)))
    work.hooks.before = failing = Failing(world, {("a", 0): 2}, TransientError("busy"))
    home = world.app.layout.partition_of(b"a")
    near = next(key for key in KEYS[1:] if world.app.layout.partition_of(key.encode()) == home)
    far = next(key for key in KEYS if world.app.layout.partition_of(key.encode()) != home)
    keys = f"a{near}{far}"
    await world.post(*(events := some(world, work, range(1), keys)))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1 and not lane.lane.backlog)
    await asked(world, HandlerCommand.DRAIN)
    await world.post(*(more := some(world, work, range(1, 3), keys)))
    await settled(world, work, lane)
    await world.until(lambda: lane.lane.gates[COUNT].pauses[b"\0%c" % (1 - home)].holds)
    assert (await states(world))[home] is PauseState.DRAINING
    await world.until(lambda: bool(failing.of("a", 2)))
    assert failing.of(near, 1) == failing.of(far, 1) == [], "they came after"
    assert len(failing.of("a", 0)) == 3, "worked off at its times, and what stands behind it"
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    await settled(world, work, lane)
    assert set((await states(world)).values()) == {PauseState.DRAINED}
    assert await reasons(world) == {"paused": 2}
    await world.post(world.event(work, "a", 3))
    await pass_time(world, 3.0)
    assert failing.of("a", 3) == [], "then it is as paused"
    await asked(world, HandlerCommand.RESUME)
    await world.until(lambda: bool(failing.of("a", 3) and failing.of(near, 2) and failing.of(far, 2)))
    await finish(world, work, lane, [*events, *more, world.event(work, "a", 3)])
    assert [what for what, _, _ in await told(world)] == ["drain"] * 2 + ["drained"] * 2 + ["resume"] * 2
    for key in keys:
        assert await order_of(world, work, key) == sorted(await order_of(world, work, key))


async def test_a_drain_waits_for_what_is_under_way_and_retried(fake: FakeWorld) -> None:
    world = fake
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        await answered.wait()
        if work.hooks.calls.count((key, i)) == 1:
            raise TransientError("busy")

    await started(world, work := asking(world.name, ask), retry=RetryPolicy(immediate=0, delays=(1.0,)))
    event = world.event(work, "a", 0)
    await world.post(event)
    lane = await world.open()
    await world.until(lambda: bool(work.hooks.calls))
    await world.post(*commanded(world, HandlerCommand.DRAIN))
    home = world.app.layout.partition_of(b"a")
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 1)
    await pass_time(world, 2.0)
    assert lane.lane.gates[COUNT].pauses[b"\0%c" % home].state is PauseState.DRAINING
    answered.set()
    await world.until(lambda: lane.lane.counters.retries == 1)
    assert len(lane.lane.gates[COUNT].held) == 1
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    assert work.hooks.calls == [("a", 0)] * 2
    await world.settled(world.app.layout.operations)
    await asked(world, HandlerCommand.RESUME)
    await finish(world, work, lane, [event])


async def test_a_drain_goes_on_after_its_lane_has_reopened(world: World) -> None:
    await started(world, work := counting(world.name), retry=RetryPolicy(immediate=0, delays=(4.0,)))
    work.hooks.before = Failing(world, {("a", 0): 1}, TransientError("busy"))
    await world.post(*(events := some(world, work, range(2), "a")))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1 and not lane.lane.backlog)
    await asked(world, HandlerCommand.DRAIN)
    world.faults.raise_at("sent", world.faults.reached["sent"] + 1, OutcomeUnknown("no answer"))
    await world.post(*(more := some(world, work, range(2, 3), "ab")))
    await world.until(lambda: lane.lane.reopened == 1)
    await world.until(lambda: lane.lane.state == "open" and len(lane.lane.gates[COUNT].held) == 2)
    assert sorted(set(work.hooks.calls)) == [("a", i) for i in range(3)], "b came after"
    await settled(world, work, lane)
    await asked(world, HandlerCommand.RESUME)
    await world.until(lambda: ("b", 2) in work.hooks.calls)
    await finish(world, work, lane, events + more)


async def test_a_letter_that_holds_others_does_not_hold_a_drain(fake: FakeWorld) -> None:
    world = fake
    await started(world, work := counting(world.name), retry=HOLDING)
    work.hooks.before = Broken(("a", 0), error=PermanentError("never"))
    await world.post(*some(world, work, range(2), "a"))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await asked(world, HandlerCommand.DRAIN)
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    assert await reasons(world) == {"dead": 1}
    await lane.stop()
    await check_store(world)


async def test_a_drain_of_one_partition_leaves_what_it_holds(
    fake: FakeWorld,
) -> None:
    world = fake
    await started(world, work := counting(world.name), retry=RetryPolicy(immediate=0, delays=(5.0,)))
    near, *_ = [key for key in KEYS[1:] if world.app.layout.partition_of(key.encode()) == 0]
    first, *_ = [key for key in KEYS if world.app.layout.partition_of(key.encode()) == 0]
    assert first != near
    work.hooks.before = Failing(world, {(first, 0): 1}, TransientError("busy"))
    await world.post(*(events := some(world, work, range(1), first)))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1 and not lane.lane.backlog)
    await asked(world, HandlerCommand.DRAIN, partitions=[0])
    await world.post(*(more := some(world, work, range(1), near)))
    await pass_time(world, 2.0)
    assert (await states(world), work.hooks.calls) == ({0: PauseState.DRAINING}, [(first, 0)])
    await asked(world, HandlerCommand.RESUME)
    await world.until(lambda: len(work.hooks.calls) == 3)
    await finish(world, work, lane, events + more)


async def test_a_drain_waits_for_what_an_earlier_pause_held(fake: FakeWorld) -> None:
    world = fake
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        await answered.wait()

    await started(world, work := asking(world.name, ask))
    lane = await world.open()
    await asked(world, HandlerCommand.PAUSE)
    event = world.event(work, "a", 0)
    await world.post(event)
    await settled(world, work, lane)
    await asked(world, HandlerCommand.RESUME)
    await world.until(lambda: bool(work.hooks.calls))
    await world.post(*commanded(world, HandlerCommand.DRAIN))
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 1)
    await pass_time(world, 2.0)
    assert len(lane.lane.gates[COUNT].held) == 1
    answered.set()
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    assert work.hooks.calls == [("a", 0)]
    await finish(world, work, lane, [event])


async def test_a_drain_of_more_than_it_looks_at_waits(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "MOST_LOOKED_AT", 2)
    world = fake
    await started(world, work := counting(world.name), retry=RetryPolicy(immediate=0, delays=(5.0,)))
    work.hooks.before = Failing(world, {(key, 0): 1 for key in KEYS}, TransientError("busy"))
    await world.post(*(events := some(world, work, range(1))))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == len(KEYS) and not lane.lane.backlog)
    await asked(world, HandlerCommand.DRAIN)
    await pass_time(world, 2.0)
    assert not lane.lane.gates[COUNT].held
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    assert len(work.hooks.calls) == 2 * len(KEYS)
    await finish(world, work, lane, events)


async def test_what_the_handler_takes_no_more_holds_no_drain(fake: FakeWorld) -> None:
    world = fake
    work, without = deployed(world.name, 1, 2), deployed(world.name, 2)
    await started(world, work, retry=LATER)
    work.hooks.before = Failing(world, {("a", 0): 1}, TransientError("busy"))
    await world.post(world.event(work, "a", 0))
    lane = await world.open()
    await settled(world, work, lane)
    await lane.stop()
    lane = await world.open(app=world.cut_into(without, lanes=1))
    await world.until(lambda: bool(lane.lane.gates[COUNT].unroutable))
    await asked(world, HandlerCommand.DRAIN)
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    assert len(lane.lane.gates[COUNT].queues) == 1
    await lane.stop()


async def test_much_that_the_handler_no_longer_takes_does_not_keep_a_drain_from_its_end(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "MOST_LOOKED_AT", 2)
    world = fake
    work, without = deployed(world.name, 1, 2), deployed(world.name, 2)
    await started(world, work, retry=LATER)
    work.hooks.before = Failing(world, {(key, 0): 1 for key in KEYS}, TransientError("busy"))
    await world.post(*some(world, work, range(1)))
    lane = await world.open()
    await settled(world, work, lane)
    await lane.stop()
    lane = await world.open(app=world.cut_into(without, lanes=1))
    await world.until(lambda: len(lane.lane.gates[COUNT].unroutable) == len(KEYS))
    await asked(world, HandlerCommand.DRAIN)
    await world.until(lambda: len(lane.lane.gates[COUNT].held) == 2)
    await lane.stop()
