"""Retries at their limits: what is dead holds others, what is too large to wait, what is too late."""

import pytest
from lane_checker import counts
from lane_failing import (
    HOLDING,
    LATER,
    Failing,
    expiring,
    letters_of,
    nothing_waits,
    started,
    waiting,
    with_header,
)
from lane_scenes import failing_counter, finished, opened, some, stopped_empty
from lane_workloads import counting
from lane_worlds import World

from streams.errors import PermanentError, TransientError
from streams.model.layout import retry_topic
from streams.policy.retry import RetryPolicy

# -- dead letters that hold later messages ----------------------------------------------------------------


@pytest.mark.parametrize("error", [PermanentError("never"), TransientError("busy")])
async def test_later_messages_may_wait_behind_a_dead_letter(world: World, error: Exception) -> None:
    work, _ = await failing_counter(world, {("a", 0): 99}, error=error, retry=HOLDING)
    await world.post(world.event(work, "a", 0), world.event(work, "a", 1), world.event(work, "b", 2))
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters)
    await stopped_empty(world, work, lane)
    lane = await world.open(stores=world.stores())
    await world.post(world.event(work, "a", 3), world.event(work, "b", 4))
    await stopped_empty(world, work, lane)
    assert len(await letters_of(world, work)) == 1
    assert {i for _, i in work.hooks.calls} == {0, 2, 4}
    assert sorted(key[:1] for key in await waiting(world)) == [b"q", b"w", b"w", b"w"]


# -- limits of size ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [PermanentError("the cause"), TransientError("the cause")])
async def test_a_message_too_large_to_wait_is_one_dead_letter(world: World, error: Exception) -> None:
    work, _ = await failing_counter(world, {("a", 0): 1}, error=error, retry=HOLDING)
    large = with_header(world.event(work, "a", 0), "x-padding", b"x" * 19_400)
    lane = await opened(world, large, world.event(work, "a", 1))
    await stopped_empty(world, work, lane)
    (letter,) = await letters_of(world, work)
    assert letter["dlq-error-message"] == b"the cause"
    assert await counts(world) == {"a": 1}
    assert await world.records(retry_topic(work.source, 1)) == []
    await nothing_waits(world)


@pytest.mark.parametrize(
    ("size", "waits"), [(19_000, True), (19_700, True), (19_800, False), (29_000, False)]
)
async def test_near_the_limit_a_message_waits_or_is_dead(world: World, size: int, *, waits: bool) -> None:
    """Its row has the key three times: in its own key, as the record's, and in the message."""
    work, key = counting(world.name), "k" * size
    await started(world, work, retry=LATER, max_message_bytes=60_000)
    work.hooks.before = failing = Failing(world, {(key, 0): 1}, TransientError("busy"))
    long = world.event(work, key, 0, message_id="long")
    long = long._replace(headers=[header for header in long.headers if header[0] != "ce_subject"])
    lane = await opened(world, long, world.event(work, "a", 0))
    await world.until(lambda: lane.lane.counters.dead_letters or len(failing.of(key, 0)) == 2)
    await stopped_empty(world, work, lane)
    assert not lane.lane.reopened
    assert await counts(world) == ({key: 1, "a": 1} if waits else {"a": 1})
    assert len(await letters_of(world, work)) == (not waits)


# -- deadlines --------------------------------------------------------------------------------------------


async def test_a_message_past_its_deadline_is_never_tried(world: World) -> None:
    work, failing = await failing_counter(world, {("a", 0): 1}, retry=RetryPolicy(immediate=0, delays=(1.0,)))
    now = world.clock.now()
    events = some(world, work, range(3), "a")
    lane = await opened(world, events[0], expiring(events[1], now + 0.5), events[2])
    await finished(world, work, lane, [events[0], events[2]], lambda: bool(failing.of("a", 2)))
    assert failing.of("a", 1) == []
    (letter,) = await letters_of(world, work)
    assert (letter["ce_id"], letter["dlq-handler"]) == (b"a-1", b"bench.count")
    assert letter["dlq-error-type"] == b"MessageExpired"
