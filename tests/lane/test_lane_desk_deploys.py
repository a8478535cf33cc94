"""Operators and dead letters after deploys, and among messages that wait."""

import asyncio
from typing import Any

import pytest
from lane_checker import check_store, counts
from lane_desk import Broken, letter_ids, letters, operated, operation, order_of
from lane_failing import HOLDING, LATER, expiring, finish, nothing_waits, pass_time, started
from lane_pausing import asked
from lane_workloads import Workload, asking, counting, deployed
from lane_worlds import FakeWorld, Post
from test_lane_desk import REPLAY, gives_up, quiet

from streams.engine.staging.entry import size_of
from streams.engine.waiting.dead_letters.row import LetterState
from streams.engine.waiting.queue import WaitingMessage
from streams.errors import PermanentError, TransientError
from streams.model.operations import HandlerCommand, LetterCommand
from streams.model.policy.retry import RetryPolicy

pytestmark = pytest.mark.promise(
    "dead-letters",
    "a handler that a later version no longer has for the topic; among retries under way, "
    "deadlines and topics no longer taken",
)

NOT_HOLDING = RetryPolicy(immediate=0, delays=())


async def with_a_letter(
    world: FakeWorld, retry: RetryPolicy, **lane_options: Any
) -> tuple[Workload, str, Broken]:
    """A letter of a handler that counts two topics, and whose event another handler has tallied; an event of
    the other topic has come since. The lane has stopped.
    """
    work, other = deployed(world.name, 1, 2, tallied=(1,)), deployed(world.name, 2)
    await started(world, work, retry=retry, **lane_options)
    work.hooks.before = broken = Broken(("a", 0))
    await world.post(world.event(work, "a", 0))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 1)
    await world.post(world.event(other, "a", 1))
    await world.settled(work.source, other.source)
    await lane.stop()
    (ident,) = await letter_ids(world)
    assert await counts(world, "tallies") == {"a": 1}
    return work, ident, broken


def without(world: FakeWorld, **more: Any) -> tuple[Workload, Any]:
    """The version that no longer counts the topic of the letter, and its application."""
    work = deployed(world.name, 2, tallied=(1,), **more)
    return work, world.cut_into(work, lanes=1)


async def refused(fake: FakeWorld, *operations: Post) -> None:
    """The version without the handler does not take the letter anew; the other handler has not run again."""
    lane = await fake.open(app=without(fake)[1])
    await operated(fake, lane, *operations)
    await lane.stop()
    assert await counts(fake, "tallies") == {"a": 1}
    (letter,) = await letters(fake)
    assert letter.state is LetterState.DEAD
    assert letter.history[-1].result.startswith("refused: there is no handler bench.count")


async def test_what_waits_behind_a_letter_taken_anew_goes_on(fake: FakeWorld) -> None:
    _, ident, _ = await with_a_letter(fake, HOLDING)
    work, app = without(fake)
    lane = await fake.open(app=app)
    await operated(fake, lane, operation(fake, REPLAY, ident))
    assert await letters(fake) == []
    await fake.until(lambda: work.hooks.calls == [("a", 1)] and not lane.lane.backlog)
    await lane.stop()
    await nothing_waits(fake)
    assert (await counts(fake), await counts(fake, "tallies")) == ({"a": 1}, {"a": 1})
    await check_store(fake)


@pytest.mark.parametrize("when", ["now", "before"])
async def test_an_edited_message_is_not_taken_anew(fake: FakeWorld, when: str) -> None:
    """Who has done it may not be known."""
    _, ident, _ = await with_a_letter(fake, NOT_HOLDING, edit_dead_letters=True)
    edit = operation(fake, LetterCommand.EDIT, ident, value=b'{"k":"a","i":0}')
    if when == "before":
        lane = await fake.open()
        await operated(fake, lane, edit)
        await quiet(fake, lane, dead_letters=1)
        await lane.stop()
    await refused(fake, edit if when == "now" else operation(fake, REPLAY, ident))


@pytest.mark.slow("weeks of virtual time")
async def test_a_letter_that_outlasts_the_inbox_is_not_taken_anew(fake: FakeWorld) -> None:
    _, ident, _ = await with_a_letter(fake, HOLDING, inbox_retention=1000.0, dead_letter_retention=500.0)
    lane = await fake.open(app=without(fake)[1])
    await fake.clock.advance(2000)
    await lane.stop()
    await refused(fake, operation(fake, REPLAY, ident))


async def test_a_message_that_outlasts_the_inbox_is_not_taken_anew(fake: FakeWorld) -> None:
    """What the other handlers did is remembered from when the message came, not from when one gave it up."""
    work = deployed(fake.name, 1, 2, tallied=(1,))
    retry = RetryPolicy(immediate=0, delays=(1000.0,))
    await started(fake, work, retry=retry, inbox_retention=1000.0, dead_letter_retention=9000.0)
    work.hooks.before = Broken(("a", 0), error=TransientError("busy"))
    await fake.post(fake.event(work, "a", 0))
    lane = await fake.open()
    await fake.until(lambda: lane.lane.counters.retries == 1)
    await fake.clock.advance(1001)
    await quiet(fake, lane, dead_letters=1)
    await lane.stop()
    (ident,) = await letter_ids(fake)
    await fake.clock.advance(700)
    await refused(fake, operation(fake, REPLAY, ident))


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
    await fake.until(lambda: lane.lane.backlog == 3)  # the third is due, and waits behind the operation
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
