"""Whatever size a client gives to what it controls, the message is handled or a dead letter, and the lane
goes on: nothing of it fails a commit.
"""

from __future__ import annotations

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_failing import LATER, Failing, finish
from lane_workloads import counting, reminding
from lane_worlds import FakeWorld, World
from test_lane_dead_letters import as_it_came, handled, with_header
from test_lane_timers import asking_for

from streams.errors import TransientError
from streams.model.envelope import MAX_ID_BYTES
from streams.model.row_keys import MAX_KEY_BYTES

LONG = MAX_ID_BYTES + 1


@pytest.mark.parametrize("size", [LONG, 15_000])
@pytest.mark.parametrize("name", ["ce_id", "ce_source", "ce_correlationid"])
async def test_ids_too_long_to_be_kept_make_dead_letters(world: World, name: str, size: int) -> None:
    await world.start(work := counting(world.name, tallied=True))
    events = [world.event(work, "a", i) for i in range(10)]
    long = [with_header(name, b"%d" % i + b"." * (size - 1))(events[i]) for i in range(5)]
    await world.post(*long, *events[5:])
    await handled(world, work.source)
    for letter, post in zip(await dead_letters(world, work.source), long, strict=True):
        assert as_it_came(letter, post)["dlq-error-type"] == b"HeaderTooLong"
    await check(world, work, events[5:])
    await check_store(world)


async def test_messages_with_the_longest_ids_are_handled_once(world: World) -> None:
    """All in one transaction."""
    await world.start(work := counting(world.name, tallied=True))
    events = [world.event(work, "a", i, message_id=f"a-{i}".ljust(MAX_ID_BYTES, ".")) for i in range(50)]
    await world.post(*events, *events)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.duplicates == 100)
    await finish(world, work, lane, events)
    assert lane.lane.reopened == 0


async def test_the_longest_keys_are_handled_a_longer_one_is_not(world: World) -> None:
    await world.start(work := counting(world.name), partitions=1, retry=LATER, max_message_bytes=400_000)
    key = "k" * MAX_KEY_BYTES
    work.hooks.before = Failing(world, {(key, 0): 1}, TransientError("busy"))
    events = [world.event(work, key, i, message_id=f"long-{i}") for i in range(2)]  # one waits for the other
    events.append(world.event(work, "a", 0))
    longer = world.event(work, key + "k", 0, message_id="longer")
    await world.post(longer, *events)
    lane = await world.open()
    await world.until(lambda: len(work.hooks.calls) == 4)  # the first twice, what waited, and another key's
    await finish(world, work, lane, events)
    assert lane.lane.reopened == 0
    (letter,) = await dead_letters(world, work.source)
    assert as_it_came(letter, longer)["dlq-error-type"] == b"TooLarge"


async def test_a_traceparent_that_is_none_is_not_passed_on(world: World) -> None:
    await world.start(work := counting(world.name))
    traces = [b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"0" * 9_000]
    sent = [with_header("traceparent", trace)(world.event(work, "a", i)) for i, trace in enumerate(traces)]
    await world.post(*sent)
    await finish(world, work, await world.open(), sent)
    passed_on = [dict(record.headers).get("traceparent") for record in await world.records(work.output)]
    assert passed_on == [traces[0], None]


async def test_a_timer_with_too_long_a_name_cannot_be_cancelled(fake: FakeWorld) -> None:
    await fake.start(work := reminding(fake.name))
    post = asking_for(fake, work, 1, None)
    long = post._replace(value=(post.value or b"").replace(b'"alarm"', b'"' + b"n" * 25_000 + b'"'))
    await fake.post(long, asking_for(fake, work, 2, None))
    await handled(fake, work.asked.TOPIC)
    (letter,) = await dead_letters(fake, work.asked.TOPIC)
    assert dict(letter.headers)["dlq-error-type"] == b"TooLarge"
    assert await counts(fake, "asks") == {"a": 1}
