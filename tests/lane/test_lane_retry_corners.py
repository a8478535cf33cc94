"""Retries where something else happens too, at their limits, and across deploys."""

import asyncio
from typing import Any

import pytest
from lane_checker import counts
from lane_failing import (
    HOLDING,
    LATER,
    Failing,
    finish,
    letters_of,
    nothing_waits,
    pass_time,
    started,
    waiting,
    with_header,
)
from lane_scenes import cleared, failing_counter, finished, opened, retried_asker, some, stopped_empty
from lane_workloads import asking, counting, deployed
from lane_worlds import FakeWorld, World

from streams.errors import PermanentError, TransientError
from streams.model.layout import retry_topic
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RetryPolicy

# -- order, while an async handler is under way -----------------------------------------------------------


@pytest.mark.promise("key-order")
@pytest.mark.parametrize("fails", [{0: 1}, {0: 1, 2: 1}])
async def test_what_comes_behind_a_busy_head_keeps_its_place(world: World, fails: dict[int, int]) -> None:
    answered, left, done = asyncio.Event(), dict(fails), []

    async def ask(key: str, i: int) -> None:
        if left.get(i):
            left[i] -= 1
            raise TransientError("busy")
        if i == 0:
            await answered.wait()
        done.append(i)

    work = await retried_asker(world, ask, retry=LATER)
    events = some(world, work, range(3), "a")
    lane = await opened(world, *events[:2])
    await world.until(lambda: work.hooks.calls.count(("a", 0)) == 2)
    await world.post(events[2])
    await world.until(lambda: lane.lane.backlog == 2)
    answered.set()
    await world.until(lambda: ("a", 2) in work.hooks.calls)
    await stopped_empty(world, work, lane)
    lane = await world.open()  # from what was committed
    await finished(world, work, lane, events, lambda: len(done) == 3)
    assert done == [0, 1, 2]


@pytest.mark.promise("retries")
async def test_a_delay_begins_when_the_attempt_ends(fake: FakeWorld) -> None:
    world, begun, ended = fake, [], []

    async def ask(key: str, i: int) -> None:
        begun.append(world.clock.now())
        await world.clock.sleep(3.0)
        ended.append(world.clock.now())
        if len(begun) == 1:
            raise TransientError("busy")

    work = await retried_asker(world, ask, retry=LATER)
    event = world.event(work, "a", 0)
    lane = await opened(world, event)
    await finished(world, work, lane, [event], lambda: len(ended) == 2)
    assert 0.3 <= begun[1] - ended[0] < 0.5


# -- ordering keys ----------------------------------------------------------------------------------------


@pytest.mark.promise("key-order")
async def test_only_messages_of_the_same_ordering_key_wait(world: World) -> None:
    work = counting(world.name, order_by=lambda event: "o" * 40_000 + str(event.i % 2))  # of any length
    await started(world, work, retry=LATER)
    work.hooks.before = Failing(world, {("a", 0): 1}, TransientError("busy"))
    events = some(world, work, range(4), "a")
    lane = await opened(world, *events)
    await finished(world, work, lane, events, lambda: len(work.hooks.calls) == 5)
    assert [i for _, i in work.hooks.calls] == [0, 1, 3, 0, 2]


async def test_without_an_ordering_key_the_messages_key_orders(world: World) -> None:
    work, _ = await failing_counter(world, {("a", 0): 1}, order_by=lambda event: event.colour, retry=LATER)
    events = [world.event(work, "a", 0), world.event(work, "a", 1), world.event(work, "b", 2)]
    lane = await opened(world, *events)
    await finished(world, work, lane, events, lambda: len(work.hooks.calls) == 4)
    assert [i for key, i in work.hooks.calls if key == "a"] == [0, 0, 1]


@pytest.mark.parametrize(("error", "counted"), [(TransientError("busy"), 2), (PermanentError("never"), 1)])
async def test_a_changing_ordering_key_loses_no_message(world: World, error: Exception, counted: int) -> None:
    told = iter(["first", "another"])
    work = counting(world.name, order_by=lambda event: next(told, "first"))
    await started(world, work, retry=HOLDING)
    first = Failing(world, {("a", 0): 1}, TransientError("busy"))
    second = Failing(world, {("a", 1): 1}, error)

    def before(event: Any) -> None:
        (second if event.i else first)(event)

    work.hooks.before = before
    lane = await opened(world, world.event(work, "a", 0), world.event(work, "a", 1))
    await world.until(lambda: len(first.of("a", 0)) == 2 and len(second.of("a", 1)) == counted)
    await stopped_empty(world, work, lane)
    assert await counts(world) == {"a": counted}
    await nothing_waits(world)


# -- several handlers, odd errors -------------------------------------------------------------------------


@pytest.mark.promise("retries")
async def test_attempts_of_one_handler_are_not_counted_for_the_next(world: World) -> None:
    work = counting(world.name, tallied=True)
    breaker = BreakerPolicy(minimum=1, failure_rate=0.5, open_for=0.3, max_open_for=0.3)
    await started(world, work, retry=RetryPolicy(immediate=1, delays=()), breaker=breaker)
    work.hooks.before = Failing(world, {("a", 0): 1}, TransientError("count is busy"))
    work.hooks.before_tally = tallying = Failing(world, {("a", 0): 1}, TransientError("tally is busy"))
    event = world.event(work, "a", 0)
    lane = await opened(world, event)
    await world.until(lambda: len(tallying.of("a", 0)) == 2 and len(work.hooks.calls) == 2)
    await finish(world, work, lane, [event])
    assert await counts(world, "tallies") == {"a": 1}
    assert await letters_of(world, work) == []


@pytest.mark.parametrize("is_async", [True, False])
async def test_handler_that_lets_cancellation_escape_is_tried_again(world: World, *, is_async: bool) -> None:
    left = [1]

    async def ask(key: str, i: int) -> None:
        if left:
            left.pop()
            awaited = asyncio.ensure_future(asyncio.sleep(60))
            awaited.cancel()
            await awaited

    def before(event: Any) -> None:
        if left:
            left.pop()
            raise asyncio.CancelledError

    work = asking(world.name, ask) if is_async else counting(world.name)
    if not is_async:
        work.hooks.before = before
    await started(world, work, retry=LATER)
    events = some(world, work, range(2), "a")
    lane = await opened(world, *events)
    await finished(world, work, lane, events, lambda: len(work.hooks.calls) == 3)
    assert work.hooks.calls == [("a", 0), ("a", 0), ("a", 1)]


async def test_an_error_that_cannot_be_shown_is_like_any_other(world: World) -> None:
    class Unshowable(Exception):
        def __str__(self) -> str:
            raise KeyError("text")

    work, _ = await failing_counter(world, {("a", 0): 2}, error=Unshowable(), retry=LATER)
    lane = await opened(world, world.event(work, "a", 0))
    await world.until(lambda: lane.lane.counters.dead_letters and not lane.lane.backlog)
    await lane.stop()
    (letter,) = await letters_of(world, work)
    (shown,) = await world.records(retry_topic(work.source, 1))
    assert letter["dlq-error-type"] == dict(shown.headers)["retry-error-type"] == b"Unshowable"
    assert letter["dlq-error-message"] == b"(Unshowable cannot be shown: KeyError)"


# -- dead letters that hold later messages ----------------------------------------------------------------


@pytest.mark.promise("key-order")
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


@pytest.mark.promise("never-runs")
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


@pytest.mark.promise("never-runs")
@pytest.mark.parametrize(("size", "waits"), [(19000, True), (19700, True), (19800, False), (29000, False)])
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


@pytest.mark.promise("never-runs")
async def test_what_waits_for_a_dropped_handler_waits_for_its_return(fake: FakeWorld) -> None:
    errors = [TransientError("the other handler is busy, too")]

    async def ask(*_: object) -> None:
        if errors:
            raise errors.pop()

    work, without = deployed(fake.name, 1, 2, tallied=(1,), ask=ask), deployed(fake.name, 2)
    await started(fake, work, retry=LATER)
    work.hooks.before = Failing(fake, {("a", 0): 1}, TransientError("busy"))
    lane = await opened(fake, fake.event(work, "a", 0))
    await stopped_empty(fake, work, lane)
    lane = await fake.open(app=fake.cut_into(without, lanes=1))
    await fake.post(fake.event(without, "a", 1), fake.event(without, "b", 2))
    await fake.until(lambda: bool(without.hooks.calls))
    await pass_time(fake, 3.0)
    assert (lane.lane.state, lane.lane.reopened) == ("open", 0)
    assert without.hooks.calls == [("b", 2)], "those of the key wait behind it"
    await lane.stop()
    lane = await fake.open()
    await cleared(fake, lane, lambda: len(work.hooks.calls) == 3)
    assert work.hooks.calls == [("a", 0), ("a", 0), ("a", 1)]
    assert await counts(fake) == {"a": 2, "b": 1}
    assert await counts(fake, "tallies") == {"a": 1}


@pytest.mark.promise("never-runs")
async def test_what_a_newer_version_cannot_decode_is_dead(fake: FakeWorld) -> None:
    work, newer = deployed(fake.name, 1), deployed(fake.name, 1, wants_colour=True)
    await started(fake, work, retry=LATER)
    work.hooks.before = Failing(fake, {("a", 0): 1}, TransientError("busy"))
    coloured = fake.event(work, "a", 1)
    await fake.post(fake.event(work, "a", 0), coloured._replace(value=b'{"k": "a", "i": 1, "colour": "red"}'))
    lane = await fake.open()
    await stopped_empty(fake, work, lane)
    lane = await fake.open(app=fake.cut_into(newer, lanes=1))
    await cleared(fake, lane, lambda: newer.hooks.calls == [("a", 1)])
    assert not lane.lane.reopened
    (letter,) = await letters_of(fake, work)
    assert letter["dlq-error-type"] == b"Undecodable"
    assert letter["dlq-handler"] == b"bench.count"
    assert await counts(fake) == {"a": 1}
