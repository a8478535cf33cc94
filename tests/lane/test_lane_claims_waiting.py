"""Payloads by reference among messages that wait: their turns, their attempts, and the bounds of the lane."""

from typing import Any

import pytest
from lane_checker import dead_letters
from lane_failing import LATER, QUICK, Failing, expiring, letters_of, pass_time
from lane_parcels import THRESHOLD
from lane_pausing import asked
from lane_worlds import FakeWorld, World
from test_lane_desk_claims import begun

from streams.errors import TransientError
from streams.model.operations import HandlerCommand
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RetryPolicy

pytestmark = pytest.mark.promise("payloads", "among messages that wait: turns, attempts, ordering keys")

LARGE = 2 * THRESHOLD


# -- turns ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [LARGE, 0])
async def test_a_message_past_its_deadline_is_not_fetched_nor_tried(world: World, size: int) -> None:
    parcels = await begun(world, retry=RetryPolicy(immediate=0, delays=(1.0,)))
    parcels.work.hooks.before = Failing(world, {("a", 0): 1}, TransientError("busy"))
    await parcels.post("a", 0)
    text = "a-1:".ljust(size, "x")
    await world.post(expiring(await parcels.made("a", 1, text), world.clock.now() + 0.5))
    await parcels.post("a", 2)
    lane = await world.open()
    await world.until(lambda: ("a", 2) in parcels.work.hooks.calls)
    assert parcels.blobs.requests["get"] == 0
    assert ("a", 1) not in parcels.work.hooks.calls
    await parcels.finish(lane)
    (letter,) = await letters_of(world, parcels.work)
    told = [letter[name] for name in ("ce_id", "dlq-error-type", "dlq-handler")]
    assert told == [b"a-1", b"MessageExpired", b"bench.keep"]


async def test_what_waited_is_fetched_in_turn_among_new_ones(fake: FakeWorld) -> None:
    parcels = await begun(fake, retry=LATER, max_in_flight=4)
    parcels.work.hooks.before = failing = Failing(fake, {("bad", 0): 1}, TransientError("busy"))
    await parcels.post("bad", 0, LARGE)
    for n in range(400):
        await parcels.post(f"k{n}", 0, LARGE)
    parcels.blobs.slow = 0.07
    await fake.open()
    await fake.until(lambda: len(failing.of("bad", 0)) == 2)
    first, second = failing.of("bad", 0)
    assert second - first < 1.5
    assert len(parcels.work.hooks.calls) < 200, "there was more to do"


async def test_payloads_for_a_paused_handler_are_fetched_at_its_resumption(fake: FakeWorld) -> None:
    parcels = await begun(fake, order_by=lambda parcel: str(parcel.i % 2))
    lane = await fake.open()
    await asked(fake, HandlerCommand.PAUSE, "bench.keep")
    for i in range(4):
        await parcels.post("a", i, LARGE if i < 3 else 0)
    await fake.settled(parcels.work.source)
    await pass_time(fake, 2.0)
    assert (parcels.blobs.requests["get"], parcels.work.hooks.calls) == (0, [])
    await asked(fake, HandlerCommand.RESUME, "bench.keep")
    await fake.until(lambda: len(parcels.work.hooks.calls) == 4)
    await parcels.finish(lane, order_of=lambda i: str(i % 2))


@pytest.mark.promise("payload-memory")
async def test_what_is_fetched_again_stays_within_the_bound_in_number(fake: FakeWorld) -> None:
    parcels = await begun(fake, retry=RetryPolicy(immediate=0, delays=(5.0,)), max_in_flight=4)
    for i in range(2):
        for n in range(20):
            await parcels.post(f"k{n}", i, LARGE)
    parcels.blobs.down = True
    lane = await fake.open()
    await fake.until(lambda: lane.lane.counters.waiting == 40)
    parcels.blobs.down = False
    parcels.blobs.slow, parcels.blobs.most_at_once = 0.3, 0
    await fake.until(lambda: len(parcels.work.hooks.calls) == 40)
    assert parcels.blobs.most_at_once == 4
    await parcels.finish(lane)


async def test_what_follows_a_retry_is_fetched_when_there_is_room(fake: FakeWorld) -> None:
    parcels = await begun(fake, retry=RetryPolicy(immediate=0, delays=(2.0,)), max_in_flight=2)
    first = {(f"k{n}", 0): 1 for n in range(10)}
    parcels.work.hooks.before = failing = Failing(fake, first, TransientError("busy"))
    for n in range(10):
        await parcels.post(f"k{n}", 0)
        await parcels.post(f"k{n}", 1, LARGE)
    lane = await fake.open()
    await fake.until(lambda: lane.lane.counters.waiting == 20)
    for key in "xy":
        await parcels.post(key, 0, LARGE)
    parcels.blobs.slow, parcels.blobs.most_at_once = 5.0, 0
    await fake.until(lambda: len(failing.of("k9", 0)) == 2)
    assert parcels.blobs.most_at_once == 2, "those are for others"
    assert failing.of("k9", 1) == []
    parcels.blobs.slow = 0.1
    await fake.until(lambda: all(failing.of(f"k{n}", 1) for n in range(10)))
    assert parcels.blobs.most_at_once == 2
    await parcels.finish(lane)


# -- attempts ---------------------------------------------------------------------------------------------


async def test_failing_uploads_take_as_many_attempts_as_anything_else(world: World) -> None:
    parcels = await begun(world, retry=QUICK)
    parcels.work.hooks.passed = lambda event: event.text.ljust(LARGE, ".")
    parcels.blobs.down = True
    await parcels.post("a", 0)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.dead_letters == 1)
    await parcels.stop(lane)
    assert parcels.blobs.requests["put"] == QUICK.max_attempts
    (letter,) = await letters_of(world, parcels.work)
    assert letter["dlq-error-type"] == b"BlobsUnavailable"
    assert letter["dlq-retry-count"] == b"%d" % (QUICK.max_attempts - 1)


async def test_what_failed_before_an_upload_counts_among_the_attempts(world: World) -> None:
    parcels = await begun(world, retry=RetryPolicy(immediate=1, delays=(1.0,)))
    parcels.work.hooks.before = Failing(world, {("a", 0): 1}, TransientError("busy"))
    parcels.work.hooks.passed = lambda event: event.text.ljust(LARGE, ".")
    parcels.blobs.down = True
    await parcels.post("a", 0)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.retries == 1)
    assert parcels.blobs.requests["put"] == 1
    parcels.blobs.down = False
    await parcels.stop(lane)
    assert await dead_letters(world, parcels.work.source) == []
    assert len(await parcels.passed_on()) == 1


# -- ordering keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [LARGE, 0], ids=["fetched", "in its record"])
async def test_what_is_sorted_in_costs_no_probe(fake: FakeWorld, large: int) -> None:
    """One probe at a time: if it was lost with a message that only changed its queue, all would wait."""
    breaker = BreakerPolicy(minimum=2, failure_rate=1.0, open_for=1.0, max_open_for=1.0, probes=1)
    parcels = await begun(fake, retry=LATER, breaker=breaker, order_by=lambda event: str(event.i % 2))
    busy = True

    def before(event: Any) -> None:
        if event.i == 1 and busy:
            raise TransientError("busy")

    parcels.work.hooks.before = before
    await parcels.post("a", 1)  # waits by its order
    await parcels.post("a", 3, LARGE)  # waits for its payload, and all of its key behind it
    await parcels.post("a", 5, large)
    parcels.blobs.down = True
    lane = await fake.open()
    await fake.until(lambda: lane.lane.counters.waiting == 3)
    parcels.blobs.down = False
    await pass_time(fake, 3.0)
    assert {i for _, i in parcels.work.hooks.calls} == {1}
    assert parcels.blobs.requests["get"] > 1, "its payload has shown where it belongs"
    assert lane.lane.counters.waiting == 3, "who only changes the queue has waited before"
    busy, over = False, fake.clock.now()
    await fake.until(lambda: ("a", 5) in parcels.work.hooks.calls)
    assert fake.clock.now() - over < breaker.probe_timeout / 2
    await parcels.finish(lane)
