"""Operators among messages that wait: a replay is in its place whatever else of its key is on its way."""

import asyncio
from typing import Any

from lane_checker import counts
from lane_desk import Broken, letter_ids, letters, operated, operation, order_of
from lane_failing import LATER, expiring, finish, nothing_waits, pass_time, settled, started
from lane_pausing import asked
from lane_workloads import asking, counting, deployed
from lane_worlds import FakeWorld
from test_lane_desk import REPLAY, gives_up, quiet, replayed

from streams.errors import PermanentError, TransientError
from streams.model.operations import HandlerCommand
from streams.policy.retry import RetryPolicy
from streams.retry.queue import WaitingMessage
from streams.staging.entry import size_of


async def test_a_replay_runs_before_a_head_that_has_set_out(fake: FakeWorld) -> None:
    answered = asyncio.Event()
    fails: dict[int, Exception] = {1: PermanentError("there is a bug"), 3: TransientError("not yet")}

    async def ask(key: str, i: int) -> None:
        if i in fails:
            raise fails[i]
        if i == 2:
            await answered.wait()

    work = asking(fake.name, ask, order_by=lambda event: "even" if event.i % 2 == 0 else "odd")
    await started(fake, work, retry=RetryPolicy(immediate=0, delays=(5.0,)))
    events = [fake.event(work, "a", i) for i in (1, 3, 2)]
    await fake.post(*events[:2])
    lane = await fake.open()
    await quiet(fake, lane, retries=1)
    (ident,) = await letter_ids(fake)
    fails.clear()
    await fake.post(events[2])
    await fake.until(lambda: ("a", 2) in work.hooks.calls)
    await fake.post(operation(fake, REPLAY, ident))
    await fake.until(lambda: lane.lane.backlog == 2)
    await fake.until(lambda: lane.lane.backlog == 3)  # the third is due, and stands behind the operation
    assert work.hooks.calls[2:] == [("a", 2)]
    answered.set()
    await fake.until(lambda: len(work.hooks.calls) == 5)
    await finish(fake, work, lane, events)
    assert await order_of(fake, work, "a") == [2, 1, 3]
    assert await letters(fake) == []


async def test_a_replay_past_its_deadline_has_all_its_tries(fake: FakeWorld) -> None:
    await started(fake, work := counting(fake.name), retry=LATER)
    work.hooks.before = broken = Broken(("a", 0))
    await fake.post(event := expiring(fake.event(work, "a", 0), fake.clock.now() + 1.0))
    lane = await fake.open()
    await quiet(fake, lane, dead_letters=1)
    await pass_time(fake, 2.0)
    broken.error = TransientError("not yet")
    (ident,) = await letter_ids(fake)
    await operated(fake, lane, operation(fake, REPLAY, ident))
    await fake.until(lambda: lane.lane.counters.retries == 1)
    broken.mend()
    await fake.until(lambda: lane.lane.counters.replayed == 1)
    await finish(fake, work, lane, [event])
    assert lane.lane.counters.dead_letters == 1
    assert await letters(fake) == []


async def test_a_replay_runs_before_what_its_handler_no_longer_takes(fake: FakeWorld) -> None:
    work, without = deployed(fake.name, 1, 2), deployed(fake.name, 2)
    await started(fake, work, retry=LATER)

    def before(event: Any) -> None:
        raise TransientError("not yet") if event.i else PermanentError("there is a bug")

    work.hooks.before = before
    await fake.post(fake.event(without, "a", 0))
    lane = await fake.open()
    await fake.settled(without.source)
    await fake.post(fake.event(work, "a", 1))
    await fake.until(lambda: lane.lane.counters.retries == 1)
    await settled(fake, work, lane)
    await lane.stop()
    work.hooks.before = lambda _: None
    lane = await fake.open(app=fake.cut_into(without, lanes=1))
    await pass_time(fake, 1.0)
    assert without.hooks.calls == []
    await replayed(fake, lane, *await letter_ids(fake))
    assert without.hooks.calls == [("a", 0)]
    await lane.stop()
    lane = await fake.open()
    await fake.until(lambda: work.hooks.calls[-1] == ("a", 1) and len(work.hooks.calls) == 3)
    await quiet(fake, lane)
    await lane.stop()
    assert await counts(fake) == {"a": 2}
    assert await letters(fake) == []
    await nothing_waits(fake)


async def test_replays_that_wait_are_bounded_in_bytes_too(fake: FakeWorld) -> None:
    await started(fake, work := counting(fake.name), max_waiting_bytes=500)
    lane, broken, events = await gives_up(fake, work, range(3), 0, 1, 2)
    size = size_of(WaitingMessage("", 0, 0, 0, b"a", events[0].value or b"", events[0].headers))
    assert 2 * size <= 500 < 3 * size
    await quiet(fake, lane, dead_letters=3)
    broken.mend()
    await asked(fake, HandlerCommand.PAUSE)
    for ident in await letter_ids(fake):
        await operated(fake, lane, operation(fake, REPLAY, ident))
    *_, last = await letters(fake)
    assert last.history[-1].result.startswith("refused: 2 messages")
    await asked(fake, HandlerCommand.RESUME)
    await fake.until(lambda: lane.lane.counters.replayed == 2)
    await finish(fake, work, lane, events[:2])
