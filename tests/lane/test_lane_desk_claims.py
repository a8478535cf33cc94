"""Operators and payloads by reference: a replay has its payload fetched again, in its place, and what a dead
letter refers to is there for as long as the letter is.
"""

from typing import Any

import pytest
from lane_checker import check_store
from lane_desk import Broken, letter_ids, letters, operated, operation
from lane_failing import HOLDING, LATER, nothing_waits
from lane_parcels import THRESHOLD, Parcels
from lane_workloads import carrying
from lane_worlds import World
from test_lane_claims import post
from test_lane_desk import REPLAY, quiet

from streams.errors import TransientError
from streams.model.claim import SIZE, claim_in
from streams.model.operations import LetterCommand
from streams.model.policy.retry import RetryPolicy

pytestmark = pytest.mark.promise("replayed-payloads")

LARGE = 2 * THRESHOLD


async def begun(world: World, **options: Any) -> Parcels:
    parcels = Parcels(world, carrying(world.name, order_by=options.pop("order_by", None)))
    await parcels.start(**{"retry": LATER, **options})
    return parcels


async def with_a_letter(parcels: Parcels) -> tuple[Any, Broken, str]:
    """A lane that has given up the second of three parcels of a key, all by reference; its letter."""
    parcels.work.hooks.before = broken = Broken(("a", 1))
    await post(parcels, "a", *[LARGE] * 3)
    lane, ident = await given_up(parcels)
    return lane, broken, ident


async def given_up(parcels: Parcels) -> tuple[Any, str]:
    """A lane that has given up one of those that were sent; its letter."""
    lane = await parcels.world.open()
    await parcels.world.until(lambda: lane.lane.counters.dead_letters == 1)
    await parcels.world.settled(parcels.work.source)
    await quiet(parcels.world, lane)
    (ident,) = await letter_ids(parcels.world)
    return lane, ident


async def replayed(parcels: Parcels, lane: Any, ident: str, **more: Any) -> None:
    await operated(parcels.world, lane, operation(parcels.world, REPLAY, ident, **more))
    await quiet(parcels.world, lane, replayed=1)
    await parcels.settled()


async def numbers(parcels: Parcels) -> list[int]:
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
    await replayed(parcels, lane, ident)
    assert parcels.blobs.requests["get"] == fetched + 2, "by each handler that has it"
    first, second, third = parcels.sent["a"]
    assert [each["text"] for each in await parcels.passed_on()] == [first, third, second]
    await finish(parcels, lane)


async def test_a_lost_payload_can_be_put_back_and_replayed(world: World) -> None:
    parcels = await begun(world)
    claim = claim_in(dict((await parcels.post("a", 0, LARGE)).headers))
    assert claim is not None
    data = await parcels.blobs.get(claim.name)
    parcels.blobs.lose(claim.name)
    lane, ident = await given_up(parcels)
    await operated(world, lane, operation(world, REPLAY, ident))
    await quiet(world, lane, dead_letters=2)
    (letter,) = await letters(world)
    assert (letter.error_type, letter.replays) == ("BlobMissing", 1)
    await parcels.blobs.put(claim.name, data, claim.content_type)
    await replayed(parcels, lane, ident, operation_id="now it is there")
    await finish(parcels, lane)
    await parcels.check()


async def test_a_replay_ordered_by_its_payload_runs_before_what_waits(world: World) -> None:
    retry = RetryPolicy(immediate=0, delays=(3.0,))
    parcels = await begun(world, order_by=lambda event: "odd" if event.i % 2 else "even", retry=retry)
    parcels.work.hooks.before = broken = Broken(("a", 1))
    await parcels.post("a", 1, LARGE)
    lane, ident = await given_up(parcels)
    broken.which, broken.error = {("a", 3)}, TransientError("not yet")
    await parcels.post("a", 3)
    await parcels.post("a", 5, LARGE)
    await quiet(world, lane, waiting=2)
    broken.mend()
    await replayed(parcels, lane, ident)
    assert await numbers(parcels) == [1, 3, 5]
    await finish(parcels, lane)


async def test_later_messages_wait_behind_a_letter_by_reference_that_holds(world: World) -> None:
    parcels = await begun(world, retry=HOLDING)
    lane, broken, ident = await with_a_letter(parcels)
    assert await numbers(parcels) == [0]
    broken.mend()
    await replayed(parcels, lane, ident)
    await world.until(lambda: parcels.work.hooks.calls[-1] == ("a", 2) and not lane.lane.backlog)
    await parcels.settled()
    await finish(parcels, lane)
    await parcels.check()


async def test_a_bad_reference_is_put_right_and_taken_anew(world: World) -> None:
    parcels = await begun(world, edit_dead_letters=True)
    text = "a-0:".ljust(LARGE, "x")
    post = await parcels.made("a", 0, text)
    claim = claim_in(dict(post.headers))
    assert claim is not None
    await world.post(post._replace(headers=[header for header in post.headers if header[0] != SIZE]))
    lane, ident = await given_up(parcels)
    (letter,) = await letters(world)
    assert (letter.handler, letter.error_type) == ("", "BadReference")
    assert await parcels.named() == set()
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
    await quiet(world, lane, replayed=1)
    await parcels.settled()
    assert await numbers(parcels) == [0, 2, 7]
    await finish(parcels, lane)
