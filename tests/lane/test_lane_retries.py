"""A message whose handler fails is tried again; later ones of its key wait behind it in order."""

import asyncio
import json
from collections import Counter
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_failing import QUICK, Failing, all_count, finish, nothing_waits, started
from lane_scenes import (
    Outage,
    failing_counter,
    finished,
    handled,
    opened,
    post,
    retried_asker,
    retrying_counter,
    rows_of,
    some,
    stopped,
)
from lane_workloads import Workload, counting
from lane_worlds import FakeWorld, Post, Running, World
from structlog.testing import capture_logs

from examples.retries_and_dead_letter import LABELS, ParcelReady, ParcelService, wiring
from streams.control.overview.health import long_queues
from streams.engine.waiting.long_queues import longest
from streams.errors import NotYet, PermanentError, TransientError
from streams.model.layout import retry_topic
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RETRY_TOPICS, RetryPolicy


@pytest.mark.promise("retries")
async def test_a_message_that_fails_is_tried_twice_more_at_once(world: World) -> None:
    work, failing = await failing_counter(world, {("a", 1): 2})
    events = some(world, work, range(3), "a")
    lane = await opened(world, *events)
    await all_count(world, lane, 3)
    await finish(world, work, lane, events)
    assert len(failing.of("a", 1)) == 3
    assert lane.lane.counters.retries == 0
    assert await world.records(retry_topic(work.source, 1)) == []


@pytest.mark.promise("retries")
@pytest.mark.landing
async def test_then_it_is_tried_later_and_shown_in_its_topic(world: World) -> None:
    work, failing = await failing_counter(world, {("a", 0): 4}, error=TransientError("still busy"))
    event = world.event(work, "a", 0)
    lane = await opened(world, event, event)
    await world.until(lambda: lane.lane.counters.duplicates == 1)
    await world.post(event)  # a duplicate of a message that waits is dropped
    await world.until(lambda: lane.lane.counters.duplicates == lane.lane.counters.retries == 2)
    await finished(world, work, lane, [event], lambda: len(failing.of("a", 0)) == 5)
    tries = failing.of("a", 0)
    late = 1.0 if world.is_fake else inf  # a busy machine may be late
    assert 0.3 <= tries[3] - tries[2] < 0.3 + late
    assert 0.5 <= tries[4] - tries[3] < 0.5 + late
    for tier in (1, 2):
        (shown,) = await world.records(retry_topic(work.source, tier))
        assert (shown.key, shown.value) == (event.key, event.value)
        assert dict(shown.headers).items() >= {
            ("retry-handler", b"bench.count"),
            ("retry-service", b"bench"),
            ("retry-attempt", b"%d" % (tier + 2)),
            ("retry-error-message", b"still busy"),
            ("ce_id", b"a-0"),
        }
    assert await world.records(retry_topic(work.source, 3)) == []


@pytest.mark.promise("retries", "after an unknown error too")
@pytest.mark.parametrize(
    ("error", "tries"),
    [(TransientError("down"), 6), (ZeroDivisionError("unknown"), 6), (PermanentError("never"), 1)],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else f"{value} tries",
)
async def test_after_the_last_try_it_is_a_dead_letter(world: World, error: Exception, tries: int) -> None:
    work, failing = await failing_counter(world, {("a", 0): 99}, error=error)
    events = some(world, work, range(3), "a")
    lane = await opened(world, *events)
    await world.until(lambda: lane.handled >= 3 and len(failing.of("a", 2)) == 1)
    await stopped(world, lane, work.source)
    assert len(failing.of("a", 0)) == tries
    (letter,) = await dead_letters(world, work.source)
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (events[0].key, events[0].value)
    assert int(headers["dlq-retry-count"]) == tries - 1
    assert headers["dlq-error-type"] == type(error).__name__.encode()
    assert headers["dlq-handler"] == b"bench.count"
    assert work.hooks.calls[-2:] == [("a", 1), ("a", 2)]
    assert await counts(world) == {"a": 2}
    await nothing_waits(world)
    await check_store(world)


async def test_the_first_three_of_any_number_of_delays_are_shown(fake: FakeWorld) -> None:
    policy = RetryPolicy(immediate=0, delays=(0.3, 0.3, 0.3, 0.3, 0.3))
    work, failing = await failing_counter(fake, {("a", 0): 5}, retry=policy)
    event = fake.event(work, "a", 0)
    lane = await opened(fake, event)
    await finished(fake, work, lane, [event], lambda: len(failing.of("a", 0)) == 6)
    shown = [len(await fake.records(retry_topic(work.source, tier))) for tier in range(1, RETRY_TOPICS + 1)]
    assert shown == [1, 1, 1]
    assert lane.lane.counters.retries == 5
    await nothing_waits(fake)


@pytest.mark.promise("key-order")
async def test_later_messages_of_the_key_wait_and_others_pass(world: World) -> None:
    work, failing = await failing_counter(world, {("a", 2): 4, ("a", 5): 3}, error=OSError("no route"))
    events = some(world, work, range(20), "abc")
    lane = await opened(world, *events)
    await world.until(lambda: len([1 for key, _ in work.hooks.calls if key == "b"]) == 20)
    assert not failing.of("a", 3), "others have passed while the key waits"
    await world.until(lambda: bool(failing.of("a", 19)))
    await all_count(world, lane, 60)
    await finish(world, work, lane, events)
    assert list(dict.fromkeys(i for key, i in work.hooks.calls if key == "a")) == list(range(20))
    outputs = [json.loads(r.value or b"")["i"] for r in await world.records(work.output) if r.key == b"a"]
    assert outputs == list(range(20))


@pytest.mark.promise("retries")
async def test_only_the_handler_that_failed_sees_the_message_again(world: World) -> None:
    work = await retrying_counter(world, tallied=True)
    failing = Failing(world, {("a", 1): 4}, TransientError("tally is busy"))
    work.hooks.before_tally = failing
    events = some(world, work, range(4), "a")
    lane = await opened(world, *events)
    await world.until(lambda: bool(failing.of("a", 3)))
    await stopped(world, lane, work.source)
    await check(world, work, events)
    await check(world, work, events, table="tallies")
    assert Counter(work.hooks.calls) == Counter({("a", i): 1 for i in range(4)})
    await nothing_waits(world)


@pytest.mark.promise("key-order")
@pytest.mark.landing
async def test_what_waits_survives_the_loss_of_lane_and_disk(world: World) -> None:
    work, failing = await failing_counter(world, {("a", 0): 3}, retry=RetryPolicy(delays=(1.5,)))
    events = some(world, work, range(5), "a")
    await handled(world, work, events)
    assert failing.of("a", 1) == []
    lane = await world.open(stores=(elsewhere := world.stores()))
    await world.until(lambda: bool(failing.of("a", 4)))
    await stopped(world, lane, work.source)
    tries = failing.of("a", 0)
    assert tries[3] - tries[2] >= 1.5
    await check(world, work, events)
    await check_store(world, stores=elsewhere)
    await nothing_waits(world)


async def test_an_async_handler_is_tried_again_too(world: World) -> None:
    fails = {("b", 0): 4, ("b", 2): 3}

    async def ask(key: str, i: int) -> None:
        await asyncio.sleep(0)
        if fails.get((key, i), 0):
            fails[key, i] -= 1
            raise TimeoutError("no answer")

    work = await retried_asker(world, ask)
    events = some(world, work, range(6), "abc")
    lane = await opened(world, *events)
    await finished(world, work, lane, events, lambda: ("b", 5) in work.hooks.calls)
    assert list(dict.fromkeys(i for key, i in work.hooks.calls if key == "b")) == list(range(6))


@pytest.mark.promise("never-runs")
async def test_a_full_queue_sends_messages_to_the_dead_letters(world: World) -> None:
    work, _ = await failing_counter(world, {("a", 0): 3}, max_waiting=3)
    events = some(world, work, range(6), "a")
    lane = await opened(world, *events)
    await world.until(lambda: ("a", 2) in work.hooks.calls)
    await stopped(world, lane, work.source)
    letters = await dead_letters(world, work.source)
    assert [dict(letter.headers)["ce_id"] for letter in letters] == [b"a-3", b"a-4", b"a-5"]
    assert {dict(letter.headers)["dlq-error-type"] for letter in letters} == {b"QueueFull"}
    assert await counts(world) == {"a": 3}
    await nothing_waits(world)


@pytest.mark.promise("outages")
async def test_an_outage_makes_messages_wait_instead_of_burying_them(world: World) -> None:
    first = 2.0 if world.is_fake else 0.1
    breaker = BreakerPolicy(window=10, minimum=10, open_for=first, max_open_for=4 * first, probes=2)
    work = await retrying_counter(world, breaker=breaker)
    work.hooks.before = outage = Outage()
    events = [world.event(work, f"k{n}", i) for i in range(2) for n in range(60)]
    lane = await opened(world, *events)
    await world.passes(60.0, real=1.5)
    tried = len(work.hooks.calls)
    assert await dead_letters(world, work.source) == []
    assert tried < 60, "an open breaker lets a few probes through, no more"
    outage.down = False
    await world.until(lambda: lane.handled >= len(events) and len(set(work.hooks.calls)) == len(events))
    await finish(world, work, lane, events)


@pytest.mark.promise("outages")
async def test_a_breaker_of_one_handler_leaves_the_others_alone(fake: FakeWorld) -> None:
    work = await retrying_counter(fake, tallied=True, breaker=BreakerPolicy(minimum=5, open_for=30.0))
    tallied: list[str] = []

    def outage(event: Any) -> None:
        tallied.append(event.k)
        raise ConnectionError("nobody there")

    work.hooks.before_tally = outage
    await handled(fake, work, [fake.event(work, f"k{n}", 0) for n in range(50)])
    assert len(await counts(fake)) == 50
    assert len(tallied) < 10
    assert await dead_letters(fake, work.source) == []


async def test_waiting_for_a_version_takes_no_tries(fake: FakeWorld) -> None:
    work = await retrying_counter(fake)
    errors = [*[NotYet] * QUICK.max_attempts, TransientError]

    def before(event: Any) -> None:
        if errors:
            raise errors.pop(0)("not now")

    work.hooks.before = before
    event = fake.event(work, "a", 0)
    lane = await opened(fake, event)
    await finished(fake, work, lane, [event], lambda: len(fake.cluster.visible(work.output)) == 1)
    assert await dead_letters(fake, work.source) == []


async def test_parcels_are_labelled_later_or_become_a_dead_letter(fake: FakeWorld) -> None:
    parcels = ParcelService()
    await fake.start(SimpleNamespace(wiring=wiring, resources={"parcels": parcels}))
    cities = {"p-1": "Oslo", "p-2": "Atlantis", "p-3": "Rome"}
    await fake.post(*(post(fake, ParcelReady(parcel=each, city=city)) for each, city in cities.items()))
    lane = await fake.open()
    await fake.until(lambda: parcels.calls == {"p-1": 3, "p-2": 1, "p-3": 3})
    await fake.until(lambda: not lane.lane.backlog)
    (letter,) = await dead_letters(fake, ParcelReady.TOPIC)
    assert letter.key == b"p-2"
    assert b"no delivery to Atlantis" in dict(letter.headers)["dlq-error-message"]
    numbers = {key: row.number for key, row in (await rows_of(fake, LABELS)).items()}
    assert numbers == {"p-1": "Oslo-p-1", "p-3": "Rome-p-3"}


#: For good after 12 s.
TWELVE = RetryPolicy(immediate=0, delays=(2.0, 4.0, 6.0))


def hot(world: FakeWorld, work: Workload, number: int) -> list[Post]:
    return [world.event(work, "hot", i) for i in range(number)]


def waiting(lane: Running) -> int:
    return sum(each.queue.length for each in longest(lane.lane.gates.values()))


@pytest.mark.promise("bounded-queue")
async def test_thousands_behind_a_failing_message_of_their_key_are_handled(fake: FakeWorld) -> None:
    work = counting(fake.name)
    await started(fake, work, retry=TWELVE)
    work.hooks.before = Failing(fake, {("hot", 99): 10}, TransientError("busy"))
    await fake.post(*hot(fake, work, 5000), fake.event(work, "other", 0))
    with capture_logs() as logs:
        lane = await fake.open()
        await fake.until(lambda: waiting(lane) > 4800)
        assert ("other", 0) in work.hooks.calls
        (said,) = long_queues(lane.lane.gates.values(), fake.clock.now())
        await fake.until(lambda: ("hot", 4999) in work.hooks.calls)
        await stopped(fake, lane, work.source)
    assert "'hot'" in said
    assert [each["event"] for each in logs].count("queue_long") == 1
    assert len(await dead_letters(fake, work.source)) == 1
    assert await counts(fake) == {"hot": 4999, "other": 1}
    await nothing_waits(fake)


@pytest.mark.promise("bounded-queue")
async def test_a_half_full_queue_holds_its_partition_back(fake: FakeWorld) -> None:
    work = counting(fake.name)
    await started(fake, work, retry=TWELVE, max_waiting=2000, hold_back=60.0, partitions=2)
    work.hooks.before = Failing(fake, {("hot", 0): 10}, TransientError("busy"))
    home = fake.app.layout.partition_of(b"hot")
    away = next(key for key in "abcdefgh" if fake.app.layout.partition_of(key.encode()) != home)
    await fake.post(*hot(fake, work, 5000))
    with capture_logs() as logs:
        lane = await fake.open()
        await fake.until(lambda: any(each["event"] == "reading_held_back" for each in logs))
        intake = lane.lane.measures.intake
        await fake.until(lambda: not lane.lane.backlog)
        assert intake.lag == intake.not_taken.total() == 5000 - intake.taken_by_topic.total() > 0
        await fake.post(*hot(fake, work, 5002)[5000:])
        await fake.until(lambda: intake.lag == 5002 - intake.taken_by_topic.total() > 0)
        await fake.post(fake.event(work, away, 0))
        await fake.until(lambda: (away, 0) in work.hooks.calls)
        assert lane.lane.counters.dead_letters == 0
        await fake.until(lambda: ("hot", 5001) in work.hooks.calls)
        await stopped(fake, lane, work.source)
    assert len(await dead_letters(fake, work.source)) == 1
    assert await counts(fake) == {"hot": 5001, away: 1}
    await nothing_waits(fake)


async def test_a_clock_set_forward_reads_nothing_on(fake: FakeWorld) -> None:
    work = counting(fake.name)
    await started(fake, work, retry=TWELVE, max_waiting=2000, hold_back=900.0, partitions=1)
    work.hooks.before = Failing(fake, {("hot", 0): 3}, TransientError("busy"))
    await fake.post(*hot(fake, work, 5000))
    with capture_logs() as logs:
        lane = await fake.open()
        await fake.until(lambda: any(each["event"] == "reading_held_back" for each in logs))
        fake.clock.set(fake.clock.now() + 3600)
        await fake.until(lambda: ("hot", 4999) in work.hooks.calls)
        await stopped(fake, lane, work.source)
    assert await counts(fake) == {"hot": 5000}
    await nothing_waits(fake)


@pytest.mark.promise("bounded-queue")
async def test_a_partition_is_held_back_for_a_bounded_time(fake: FakeWorld) -> None:
    work = counting(fake.name)
    later = RetryPolicy(immediate=0, delays=(600.0,))
    await started(fake, work, retry=later, max_waiting=2000, hold_back=60.0, partitions=1)
    work.hooks.before = Failing(fake, {("hot", 0): 1}, TransientError("busy"))
    await fake.post(*hot(fake, work, 3000), fake.event(work, "late", 0))
    began = fake.clock.now()
    with capture_logs() as logs:
        lane = await fake.open()
        await fake.until(lambda: ("late", 0) in work.hooks.calls)
    assert 60 <= fake.clock.now() - began < 600
    said = [(each["event"], each["log_level"]) for each in logs if each["event"].startswith("reading_")]
    assert said == [("reading_held_back", "warning"), ("reading_goes_on", "info")]
    await fake.until(lambda: ("hot", 1999) in work.hooks.calls)
    await stopped(fake, lane, work.source)
    letters = await dead_letters(fake, work.source)
    assert {dict(letter.headers)["dlq-error-type"] for letter in letters} == {b"QueueFull"}
    assert len(letters) == 1000
