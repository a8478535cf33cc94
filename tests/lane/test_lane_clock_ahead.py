"""What a lane wrote while its clock was ahead is due when the policies say, by a clock that is right."""

import json
from math import ceil
from typing import Any

import pytest
from lane_checker import check_store, counts
from lane_failing import PATIENT, Failing, nothing_waits
from lane_pausing import asked
from lane_sagas import TripWanted, trips
from lane_scenes import failing_counter, opened, post
from lane_workloads import Reminding, Workload, avro_codecs, counting, reminding
from lane_worlds import FakeWorld, Running
from test_lane_schemas import newer

from streams.engine.staging.changes import TIMERS
from streams.engine.staging.keys import time_in
from streams.errors import NotYet, TransientError
from streams.model.codecs import Schemas
from streams.model.operations import HandlerCommand
from streams.model.policy.retry import RetryPolicy

pytestmark = pytest.mark.promise("clock-ahead")

#: How far a clock is ahead, in seconds.
AHEAD = 59 * 60.0
#: The first late try is after 10 s.
RETRY = RetryPolicy(immediate=0, delays=(10.0, 60.0, 300.0))


def set_back(world: FakeWorld) -> None:
    world.clock.set(world.clock.now() - AHEAD)


async def right_again(world: FakeWorld, lane: Running, how: str) -> Running:
    """Set the clock of a lane right; `moved`: another worker, whose clock is right, opens the lane."""
    if how == "moved":
        await lane.stop()
        set_back(world)
        return await world.open()
    set_back(world)
    return lane


async def waiting_ahead(world: FakeWorld, error: Exception, **options: Any) -> tuple[Workload, Failing, Any]:
    """A lane whose clock is ahead, in which a message waits after an error, and another one behind it."""
    work, failing = await failing_counter(world, {("a", 0): 1}, error=error, **{"retry": RETRY, **options})
    world.clock.set(world.clock.now() + AHEAD)
    lane = await opened(world, world.event(work, "a", 0), world.event(work, "a", 1))
    await world.until(lambda: lane.lane.counters.waiting == 2 and not lane.lane.backlog)
    return work, failing, lane


both = pytest.mark.parametrize("how", ["moved", "set"])


@both
@pytest.mark.parametrize("error", [TransientError("busy"), NotYet("newer")])
async def test_a_retry_of_a_clock_ahead_keeps_its_delay(fake: FakeWorld, how: str, error: Exception) -> None:
    _, failing, lane = await waiting_ahead(fake, error)
    lane = await right_again(fake, lane, how)
    began = fake.clock.now()
    await fake.until(lambda: len(failing.of("a", 1)) == 1 and not lane.lane.backlog)
    assert 5.0 < failing.of("a", 0)[-1] - began < 35.0
    await lane.stop()
    await nothing_waits(fake)
    await check_store(fake)


@both
async def test_a_resumed_handler_runs_messages_of_a_clock_ahead(fake: FakeWorld, how: str) -> None:
    work, failing = await failing_counter(fake, {}, retry=RETRY)
    fake.clock.set(fake.clock.now() + AHEAD)
    lane = await fake.open()
    await asked(fake, HandlerCommand.PAUSE, "bench.count")
    await fake.post(fake.event(work, "a", 0))
    await fake.until(lambda: lane.lane.counters.waiting == 1 and not lane.lane.backlog)
    lane = await right_again(fake, lane, how)
    began = fake.clock.now()
    await asked(fake, HandlerCommand.RESUME, "bench.count")
    await fake.until(lambda: failing.of("a", 0) and not lane.lane.backlog)
    assert failing.of("a", 0)[-1] - began < 5.0


@both
async def test_schema_patience_is_no_longer_for_a_clock_ahead(fake: FakeWorld, how: str) -> None:
    work, schemas = counting(fake.name), Schemas()
    await fake.start(work, codecs=avro_codecs(schemas), schema_patience=100.0)
    fake.clock.set(fake.clock.now() + AHEAD)
    lane = await opened(fake, newer(fake.event(work, "a", 0), "a", 0))
    await fake.until(lambda: lane.lane.counters.waiting == 1 and not lane.lane.backlog)
    lane = await right_again(fake, lane, how)
    began = fake.clock.now()
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    assert 95.0 < fake.clock.now() - began < 110.0


async def asking(world: FakeWorld, work: Reminding, i: int, name: str, **more: Any) -> None:
    await world.post(post(world, work.asked(k="a", name=name, **more), i))


@both
async def test_durations_are_kept_and_dates_stay(fake: FakeWorld, how: str) -> None:
    work = reminding(fake.name)
    await fake.start(work)
    began = fake.clock.now()
    fake.clock.set(began + AHEAD)
    lane = await fake.open()
    await asking(fake, work, 1, "relative", after=20.0)
    await asking(fake, work, 2, "absolute", due=began + AHEAD + 20.0)
    await fake.until(lambda: lane.handled == 2 and not lane.lane.backlog)
    lane = await right_again(fake, lane, how)
    await fake.until(lambda: lane.lane.counters.timers == 1)
    assert fake.clock.now() - began < 60.0
    await fake.until(lambda: not lane.lane.backlog)
    await fake.settled(work.rang.TOPIC)
    (rang,) = await fake.records(work.rang.TOPIC)
    assert json.loads(rang.value or b"")["name"] == "relative"
    assert "timer-after" not in dict(rang.headers)
    assert await counts(fake, "rings") == {"a": 1}
    assert lane.lane.store is not None
    (left,) = [time_in(value) for _, value in lane.lane.store.scan(TIMERS)]
    assert left == ceil((began + AHEAD + 20.0) * 1000)


@both
async def test_a_saga_deadline_of_a_clock_ahead_comes_soon(fake: FakeWorld, how: str) -> None:
    work = trips(fake.clock)
    await fake.start(work)
    fake.clock.set(fake.clock.now() + AHEAD)
    lane = await fake.open()
    await asked(fake, HandlerCommand.PAUSE, "money.take_money")
    await fake.post(post(fake, TripWanted(k="a", to="home")))
    await fake.until(lambda: lane.lane.gates["money.take_money"].queues and not lane.lane.backlog)
    lane = await right_again(fake, lane, how)
    began = fake.clock.now()
    await fake.until(lambda: lane.lane.counters.timers >= 1)
    assert fake.clock.now() - began < 120.0


async def test_a_timer_postponed_by_a_clock_ahead_rings_soon(fake: FakeWorld) -> None:
    work = reminding(fake.name)
    await fake.start(work)
    fake.cluster.limits[work.rang.TOPIC] = 2_000
    fake.clock.set(fake.clock.now() + AHEAD)
    lane = await fake.open()
    await asking(fake, work, 1, "x" * 5_000, due=fake.clock.now() + 1.0)
    await fake.until(lambda: lane.lane.measures.refused_timers)
    await lane.stop()
    set_back(fake)
    fake.cluster.limits[work.rang.TOPIC] = 20_000
    lane, began = await fake.open(), fake.clock.now()
    await fake.until(lambda: lane.lane.counters.timers == 1)
    assert fake.clock.now() - began < 70.0


async def test_retries_of_a_right_clock_are_left_alone(fake: FakeWorld) -> None:
    work, failing = await failing_counter(
        fake, {("a", 0): 2}, retry=RETRY, breaker=PATIENT, outage_patience=0.0
    )
    lane = await opened(fake, fake.event(work, "a", 0))
    await fake.until(lambda: len(failing.of("a", 0)) == 2)
    await lane.stop()
    lane = await fake.open()
    await fake.until(lambda: len(failing.of("a", 0)) == 3)
    first, second, third = failing.of("a", 0)
    assert (second - first, third - second) == pytest.approx((10, 60), abs=1.0)
