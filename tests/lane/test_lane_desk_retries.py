"""Operators among messages that wait: a replay is in its place whatever else of its key is on its way."""

from __future__ import annotations

import asyncio
from typing import Any

from lane_checker import counts
from lane_desk import Broken, letter_ids, letters, operated, operation, order_of
from lane_failing import LATER, expiring, finish, nothing_waits, pass_time, settled, started
from lane_pausing import asked
from lane_workloads import asking, counting, deployed
from lane_worlds import FakeWorld

from streams.errors import PermanentError, TransientError
from streams.model.operations import HandlerCommand, LetterCommand
from streams.policy.retry import RetryPolicy
from streams.retry.queue import WaitingMessage
from streams.staging.sequences import size_of


async def test_a_replay_runs_before_a_head_that_has_set_out(fake: FakeWorld) -> None:
    world = fake
    answered = asyncio.Event()
    fails: dict[int, Exception] = {1: PermanentError("there is a bug"), 3: TransientError("not yet")}

    async def ask(key: str, i: int) -> None:
        if i in fails:
            raise fails[i]
        if i == 2:
            await answered.wait()

    work = asking(world.name, ask, order_by=lambda event: "even" if event.i % 2 == 0 else "odd")
    await started(world, work, retry=RetryPolicy(immediate=0, delays=(5.0,)))
    events = [world.event(work, "a", i) for i in (1, 3, 2)]
    await world.post(*events[:2])
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1 and not lane.lane.backlog)
    (ident,) = await letter_ids(world)
    fails.clear()
    await world.post(events[2])
    await world.until(lambda: ("a", 2) in work.hooks.calls)
    await world.post(operation(world, LetterCommand.REPLAY, ident))
    await world.until(lambda: lane.lane.backlog == 2)
    await world.until(lambda: lane.lane.backlog == 3)  # the third is due, and stands behind the operation
    assert work.hooks.calls[2:] == [("a", 2)]
    answered.set()
    await world.until(lambda: len(work.hooks.calls) == 5)
    await finish(world, work, lane, events)
    assert await order_of(world, work, "a") == [2, 1, 3]
    assert await letters(world) == []


async def test_a_replay_past_its_deadline_has_all_its_tries(fake: FakeWorld) -> None:
    world = fake
    await started(world, work := counting(world.name), retry=LATER)
    work.hooks.before = broken = Broken(("a", 0))
    event = expiring(world.event(work, "a", 0), world.clock.now() + 1.0)
    await world.post(event)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await pass_time(world, 2.0)
    broken.error = TransientError("not yet")
    (ident,) = await letter_ids(world)
    await operated(world, lane, operation(world, LetterCommand.REPLAY, ident))
    await world.until(lambda: lane.lane.counters.retries == 1)
    broken.mend()
    await world.until(lambda: lane.lane.counters.replayed == 1)
    await finish(world, work, lane, [event])
    assert lane.lane.counters.dead_letters == 1
    assert await letters(world) == []


async def test_a_replay_runs_before_what_its_handler_no_longer_takes(fake: FakeWorld) -> None:
    world = fake
    work, without = deployed(world.name, 1, 2), deployed(world.name, 2)
    await started(world, work, retry=LATER)

    def before(event: Any) -> None:
        raise TransientError("not yet") if event.i else PermanentError("there is a bug")

    work.hooks.before = before
    await world.post(world.event(without, "a", 0))
    lane = await world.open()
    await world.settled(without.source)
    await world.post(world.event(work, "a", 1))
    await world.until(lambda: lane.lane.counters.retries == 1)
    await settled(world, work, lane)
    await lane.stop()
    work.hooks.before = lambda _: None
    lane = await world.open(app=world.cut_into(without, lanes=1))
    await pass_time(world, 1.0)
    assert without.hooks.calls == []
    (ident,) = await letter_ids(world)
    await operated(world, lane, operation(world, LetterCommand.REPLAY, ident))
    await world.until(lambda: lane.lane.counters.replayed == 1 and not lane.lane.backlog)
    assert without.hooks.calls == [("a", 0)]
    await lane.stop()
    lane = await world.open()
    await world.until(lambda: work.hooks.calls[-1] == ("a", 1) and len(work.hooks.calls) == 3)
    await world.until(lambda: not lane.lane.backlog)
    await lane.stop()
    assert await counts(world) == {"a": 2}
    assert await letters(world) == []
    await nothing_waits(world)


async def test_replays_that_wait_are_bounded_in_bytes_too(fake: FakeWorld) -> None:
    world = fake
    await started(world, work := counting(world.name), max_waiting_bytes=500)
    events = [world.event(work, "a", i) for i in range(3)]
    size = size_of(WaitingMessage("", 0, 0, 0, b"a", events[0].value or b"", events[0].headers))
    assert 2 * size <= 500 < 3 * size
    work.hooks.before = broken = Broken(("a", 0), ("a", 1), ("a", 2))
    await world.post(*events)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 3 and not lane.lane.backlog)
    broken.mend()
    await asked(world, HandlerCommand.PAUSE)
    for ident in await letter_ids(world):
        await operated(world, lane, operation(world, LetterCommand.REPLAY, ident))
    *_, last = await letters(world)
    assert last.history[-1].result.startswith("refused: 2 messages")
    await asked(world, HandlerCommand.RESUME)
    await world.until(lambda: lane.lane.counters.replayed == 2)
    await finish(world, work, lane, events[:2])
