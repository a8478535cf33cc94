"""Operators and payloads by reference: a replay has its payload fetched again, in its place, and what a dead
letter refers to is there for as long as the letter is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from lane_checker import check_store
from lane_desk import Broken, letter_ids, letters, operated, operation
from lane_failing import HOLDING, LATER, nothing_waits
from lane_parcels import THRESHOLD, Parcels
from lane_workloads import carrying
from lane_worlds import FakeWorld, World

from streams.claims.claim import SIZE, claim_in
from streams.errors import TransientError
from streams.model.operations import LetterCommand
from streams.policy.retry import RetryPolicy

LARGE = 2 * THRESHOLD
POINTS = ("staged", "begun", "sent", "offsets_sent", "committed", "applied")


async def begun(world: World, order_by: Callable[[Any], str] | None = None, **lane_options: Any) -> Parcels:
    parcels = Parcels(world, carrying(world.name, order_by=order_by))
    await parcels.start(**{"retry": LATER, **lane_options})
    return parcels


async def with_a_letter(parcels: Parcels) -> tuple[Any, Broken, str]:
    """A lane that has given up the second of three parcels of a key, all by reference; its letter."""
    world = parcels.world
    parcels.work.hooks.before = broken = Broken(("a", 1))
    for i in range(3):
        await parcels.post("a", i, LARGE)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 1)
    await world.settled(parcels.work.source)
    await world.until(lambda: not lane.lane.backlog)
    (ident,) = await letter_ids(world)
    return lane, broken, ident


async def replayed(parcels: Parcels, lane: Any) -> None:
    """Wait until one replay has succeeded, and what followed from it."""
    await parcels.world.until(lambda: lane.lane.counters.replayed == 1 and not lane.lane.backlog)
    await parcels.settled()


async def passed_on(parcels: Parcels) -> list[int]:
    return [each["i"] for each in await parcels.passed_on()]


async def finish(parcels: Parcels, lane: Any) -> None:
    """No letter is left, and nothing waits."""
    await lane.stop()
    assert await letters(parcels.world) == []
    await nothing_waits(parcels.world)
    await check_store(parcels.world)


async def test_a_replay_has_its_payload_fetched_again(world: World) -> None:
    parcels = await begun(world)
    lane, broken, ident = await with_a_letter(parcels)
    (letter,) = await letters(world)
    assert letter.value == b""
    assert claim_in(dict(letter.record.headers)) is not None
    await parcels.settled()
    fetched = parcels.blobs.requests["get"]
    broken.mend()
    await operated(world, lane, operation(world, LetterCommand.REPLAY, ident))
    await replayed(parcels, lane)
    assert parcels.blobs.requests["get"] == fetched + 2, "by each handler that has it"
    first, second, third = parcels.sent["a"]
    assert [each["text"] for each in await parcels.passed_on()] == [first, third, second]
    await finish(parcels, lane)


async def test_a_lost_payload_can_be_put_back_and_replayed(world: World) -> None:
    parcels = await begun(world)
    post = await parcels.post("a", 0, LARGE)
    claim = claim_in(dict(post.headers))
    assert claim is not None
    data = await parcels.blobs.get(claim.name)
    parcels.blobs.lose(claim.name)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    (ident,) = await letter_ids(world)
    await operated(world, lane, operation(world, LetterCommand.REPLAY, ident))
    await world.until(lambda: lane.lane.counters.dead_letters == 2 and not lane.lane.backlog)
    (letter,) = await letters(world)
    assert (letter.error_type, letter.replays) == ("BlobMissing", 1)
    await parcels.blobs.put(claim.name, data, claim.content_type)
    await operated(world, lane, operation(world, LetterCommand.REPLAY, ident, operation_id="now it is there"))
    await replayed(parcels, lane)
    await finish(parcels, lane)
    await parcels.check()


async def test_a_replay_ordered_by_its_payload_runs_before_what_waits(world: World) -> None:
    parcels = await begun(
        world,
        order_by=lambda event: "odd" if event.i % 2 else "even",
        retry=RetryPolicy(immediate=0, delays=(3.0,)),
    )
    parcels.work.hooks.before = broken = Broken(("a", 1))
    await parcels.post("a", 1, LARGE)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    (ident,) = await letter_ids(world)
    broken.which, broken.error = {("a", 3)}, TransientError("not yet")
    await parcels.post("a", 3)
    await parcels.post("a", 5, LARGE)
    await world.until(lambda: lane.lane.counters.waiting == 2 and not lane.lane.backlog)
    broken.mend()
    await operated(world, lane, operation(world, LetterCommand.REPLAY, ident))
    await replayed(parcels, lane)
    assert await passed_on(parcels) == [1, 3, 5]
    await finish(parcels, lane)


async def test_later_messages_wait_behind_a_letter_by_reference_that_holds(world: World) -> None:
    parcels = await begun(world, retry=HOLDING)
    lane, broken, ident = await with_a_letter(parcels)
    assert await passed_on(parcels) == [0]
    broken.mend()
    await operated(world, lane, operation(world, LetterCommand.REPLAY, ident))
    await world.until(lambda: parcels.work.hooks.calls[-1] == ("a", 2) and not lane.lane.backlog)
    await replayed(parcels, lane)
    await finish(parcels, lane)
    await parcels.check()


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_in_a_replay_neither_loses_nor_repeats_it(
    fake: FakeWorld, point: str, nth: int
) -> None:
    parcels = await begun(fake)
    lane, broken, ident = await with_a_letter(parcels)
    broken.mend()
    fake.faults.kill_at(point, nth=fake.faults.reached[point] + nth)
    await fake.post(operation(fake, LetterCommand.REPLAY, ident))
    await lane.killed()
    again = await fake.open()
    async with asyncio.timeout(60):
        while await letters(fake):
            await fake._tick()
    await fake.until(lambda: not again.lane.backlog)
    await parcels.settled()
    first, second, third = parcels.sent["a"]
    assert [each["text"] for each in await parcels.passed_on()] == [first, third, second]
    await finish(parcels, again)


async def test_a_bad_reference_is_put_right_and_taken_anew(world: World) -> None:
    parcels = await begun(world, edit_dead_letters=True)
    text = "a-0:".ljust(LARGE, "x")
    post = await parcels.made("a", 0, text)
    claim = claim_in(dict(post.headers))
    assert claim is not None
    await world.post(post._replace(headers=[header for header in post.headers if header[0] != SIZE]))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    (letter,) = await letters(world)
    assert (letter.handler, letter.error_type) == ("", "BadReference")
    assert await parcels.named() == set()
    (ident,) = await letter_ids(world)
    await operated(world, lane, operation(world, LetterCommand.EDIT, ident, headers=post.headers))
    await world.until(lambda: lane.handled == 2 and not lane.lane.backlog)
    assert [each["text"] for each in await parcels.passed_on()] == [text]
    assert claim.name in await parcels.named()
    await finish(parcels, lane)


async def test_an_edited_message_may_have_its_payload_with_it(world: World) -> None:
    parcels = await begun(world, edit_dead_letters=True)
    lane, _, ident = await with_a_letter(parcels)
    value = b'{"k":"a","i":7,"text":"short"}'
    await operated(world, lane, operation(world, LetterCommand.EDIT, ident, value=value))
    await replayed(parcels, lane)
    assert await passed_on(parcels) == [0, 2, 7]
    await finish(parcels, lane)
