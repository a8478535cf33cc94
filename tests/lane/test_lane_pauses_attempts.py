"""Nothing is tried of a paused handler: no retry, no probe, no replay, and none that stands behind."""

import asyncio
from collections.abc import Sequence

import pytest
from lane_checker import counts
from lane_desk import Broken, order_of
from lane_failing import LATER, Failing, finish, pass_time, settled
from lane_pausing import COUNT, KEYS, asked, commanded, some
from lane_scenes import finished, opened, operated_on, retried_asker, retrying_counter
from lane_workloads import Workload
from lane_worlds import FakeWorld, Post, Running

from streams.errors import TransientError
from streams.model.operations import HandlerCommand, LetterCommand
from streams.model.policy.retry import RetryPolicy


async def pausing(fake: FakeWorld, lane: Running) -> None:
    """The lane has heard of a pause; attempts may still be under way."""
    await fake.post(*commanded(fake, HandlerCommand.PAUSE))
    await fake.until(lambda: len(lane.lane.gates[COUNT].shut) == 2)


async def resumed(
    fake: FakeWorld, work: Workload, lane: Running, events: Sequence[Post], *, calls: int
) -> None:
    """After the resume, and so many calls in all, these events are handled."""
    await asked(fake, HandlerCommand.RESUME)
    await finished(fake, work, lane, events, lambda: len(work.hooks.calls) == calls)


async def test_retries_wait_for_the_resume_and_their_own_times(fake: FakeWorld) -> None:
    work = await retrying_counter(fake, retry=RetryPolicy(immediate=0, delays=(2.0, 10.0)))
    work.hooks.before = failing = Failing(fake, {("a", 0): 2, ("b", 0): 1}, TransientError("busy"))
    events = some(fake, work, range(2), "ab")
    lane = await opened(fake, *events)
    await fake.until(lambda: len(failing.of("a", 0)) == 2)
    await fake.until(lambda: len(failing.of("b", 1)) == 1)
    await asked(fake, HandlerCommand.PAUSE)
    resumed = fake.clock.now() + 3.0
    await pass_time(fake, 3.0)
    await asked(fake, HandlerCommand.RESUME)
    await fake.until(lambda: len(failing.of("a", 1)) == 1)
    _, second, third = failing.of("a", 0)
    assert third >= second + 10.0, "its own time was later than the resume"
    assert third > resumed
    await finish(fake, work, lane, events)
    assert await order_of(fake, work, "a") == [0, 1]


@pytest.mark.promise("pauses")
async def test_an_attempt_under_way_ends_and_what_fails_then_waits(fake: FakeWorld) -> None:
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        if i == 0:
            await answered.wait()
            if key == "b" and work.hooks.calls.count(("b", 0)) == 1:
                raise TransientError("busy")

    work = await retried_asker(fake, ask)
    events = some(fake, work, range(2), "ab")
    lane = await opened(fake, *events)
    await fake.until(lambda: len(work.hooks.calls) == 2)
    await pausing(fake, lane)
    assert lane.lane.gates[COUNT].under_way == 2
    answered.set()
    await settled(fake, work, lane)
    await pass_time(fake, 2.0)
    assert sorted(work.hooks.calls) == [("a", 0), ("b", 0)], "no immediate retry, and none that came behind"
    assert lane.lane.gates[COUNT].under_way == 0
    assert await counts(fake) == {"a": 1}
    await resumed(fake, work, lane, events, calls=5)


async def test_what_stands_behind_a_paused_head_waits_on(fake: FakeWorld) -> None:
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        if len(work.hooks.calls) == 1:
            raise TransientError("busy")
        await answered.wait()

    work = await retried_asker(fake, ask, retry=LATER)
    events = some(fake, work, range(2), "a")
    lane = await opened(fake, *events)
    await fake.until(lambda: len(work.hooks.calls) == 2)
    await pausing(fake, lane)
    handled = lane.handled
    answered.set()
    await fake.until(lambda: lane.handled > handled)
    await settled(fake, work, lane)
    assert (lane.handled, len(work.hooks.calls)) == (handled + 1, 2)
    await resumed(fake, work, lane, events, calls=3)


async def test_a_pause_takes_effect_though_all_slots_are_taken(fake: FakeWorld) -> None:
    answered = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        await answered.wait()

    work = await retried_asker(fake, ask, max_in_flight=2)
    events = some(fake, work, range(1))
    lane = await opened(fake, *events, *commanded(fake, HandlerCommand.PAUSE))
    await fake.until(lambda: len(lane.lane.gates[COUNT].shut) == 2)
    answered.set()
    await settled(fake, work, lane)
    assert len(work.hooks.calls) <= 2
    await resumed(fake, work, lane, events, calls=len(KEYS))


@pytest.mark.promise("pauses")
async def test_a_replay_waits_for_the_resume_and_is_first_then(fake: FakeWorld) -> None:
    work = await retrying_counter(fake, retry=LATER)
    work.hooks.before = broken = Broken(("a", 0))
    events = some(fake, work, range(3), "a")
    lane = await opened(fake, events[0])
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    broken.mend()
    await asked(fake, HandlerCommand.PAUSE)
    await fake.post(*events[1:])
    await settled(fake, work, lane)
    await operated_on(fake, lane, LetterCommand.REPLAY)
    await pass_time(fake, 2.0)
    assert len(work.hooks.calls) == 1
    await resumed(fake, work, lane, events, calls=4)
    assert await order_of(fake, work, "a") == [0, 1, 2]
