"""Operators and dead letters of a handler that a later version no longer has for their topic."""

from __future__ import annotations

from typing import Any

import pytest
from lane_checker import check_store, counts
from lane_desk import Broken, letter_ids, letters, operated, operation
from lane_failing import HOLDING, nothing_waits, started
from lane_workloads import Workload, deployed
from lane_worlds import FakeWorld

from streams.dead_letters.row import LetterState
from streams.model.operations import LetterCommand
from streams.policy.retry import RetryPolicy

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


async def test_what_waits_behind_a_letter_goes_on_when_that_is_taken_anew(fake: FakeWorld) -> None:
    _, ident, _ = await with_a_letter(fake, HOLDING)
    work, app = without(fake)
    lane = await fake.open(app=app)
    await operated(fake, lane, operation(fake, LetterCommand.REPLAY, ident))
    assert await letters(fake) == []
    await fake.until(lambda: work.hooks.calls == [("a", 1)] and not lane.lane.backlog)
    await lane.stop()
    await nothing_waits(fake)
    assert (await counts(fake), await counts(fake, "tallies")) == ({"a": 1}, {"a": 1})
    await check_store(fake)


async def test_a_letter_that_holds_and_cannot_be_read_holds_on(fake: FakeWorld) -> None:
    work, ident, broken = await with_a_letter(fake, HOLDING)
    lane = await fake.open(app=without(fake, wants_colour=True)[1])
    await operated(fake, lane, operation(fake, LetterCommand.REPLAY, ident))
    await lane.stop()
    (letter,) = await letters(fake)
    assert (letter.state, letter.replays, letter.handler) == (LetterState.DEAD, 1, "bench.count")
    broken.mend()
    lane = await fake.open()
    await operated(fake, lane, operation(fake, LetterCommand.REPLAY, ident, operation_id="mended"))
    await fake.until(lambda: work.hooks.calls[-2:] == [("a", 0), ("a", 1)] and not lane.lane.backlog)
    await lane.stop()
    await nothing_waits(fake)
    assert await counts(fake) == {"a": 2}
    await check_store(fake)


@pytest.mark.parametrize("when", ["now", "before"])
async def test_an_edited_message_is_not_taken_anew_for_who_has_done_it_may_not_be_known(
    fake: FakeWorld, when: str
) -> None:
    _, ident, _ = await with_a_letter(fake, NOT_HOLDING, edit_dead_letters=True)
    edit = operation(fake, LetterCommand.EDIT, ident, value=b'{"k":"a","i":0}')
    if when == "before":
        lane = await fake.open()
        await operated(fake, lane, edit)
        await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
        await lane.stop()
    lane = await fake.open(app=without(fake)[1])
    await operated(fake, lane, edit if when == "now" else operation(fake, LetterCommand.REPLAY, ident))
    await lane.stop()
    assert await counts(fake, "tallies") == {"a": 1}
    (letter,) = await letters(fake)
    assert letter.state is LetterState.DEAD
    assert letter.history[-1].result.startswith("refused: there is no handler bench.count")


async def test_a_letter_that_has_outlasted_the_inbox_is_not_taken_anew(fake: FakeWorld) -> None:
    _, ident, _ = await with_a_letter(fake, HOLDING, inbox_retention=1000.0, dead_letter_retention=500.0)
    lane = await fake.open(app=without(fake)[1])
    await fake.clock.advance(2000)
    await operated(fake, lane, operation(fake, LetterCommand.REPLAY, ident))
    await lane.stop()
    assert await counts(fake, "tallies") == {"a": 1}
    (letter,) = await letters(fake)
    assert letter.history[-1].result.startswith("refused: there is no handler bench.count")
