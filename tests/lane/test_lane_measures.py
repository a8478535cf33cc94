"""What a lane measures of itself and of its handlers, for the metrics of its worker."""

import asyncio
import time

from lane_failing import all_counted, finish, started
from lane_scenes import failing_counter, finished, opened, retrying_asker, retrying_counter, some
from lane_workloads import counting
from lane_worlds import FakeWorld, World

from streams.staging.measures import Distribution, HandlerMeasures


def test_a_distribution_counts_values_at_and_beyond_bounds() -> None:
    found = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 7.0):
        found.add(value)
    assert (found.counts, found.total) == ([2, 2, 1], 12.0)


async def test_a_lane_measures_its_transactions(world: World) -> None:
    work = await retrying_counter(world)
    events = some(world, work, range(5), "abc")
    lane = await opened(world, *events)
    await all_counted(world, lane, len(events))
    await world.until(lambda: lane.lane.measures.lag == 0)
    measures = lane.lane.measures
    assert measures.intake.taken_by_topic.total() == len(events)
    assert measures.intake.not_taken.total() == 0
    assert measures.batches.total == len(events)
    assert sum(measures.batches.counts) == sum(measures.commits.counts) > 0
    assert measures.commits.total > 0
    assert measures.oldest_age(world.clock.now()) == 0
    await finish(world, work, lane, events)


async def test_a_lane_knows_how_far_it_is_behind(fake: FakeWorld) -> None:
    answered, asked = asyncio.Event(), []

    async def ask(key: str, i: int) -> None:
        asked.append((key, i))
        await answered.wait()

    work = await retrying_asker(fake, ask, max_in_flight=2)
    events = [fake.event(work, f"k{n}", 0) for n in range(10)]
    lane = await opened(fake, *events)
    measures = lane.lane.measures
    await fake.until(lambda: len(asked) == 2)
    await fake.passes(5, real=0)
    assert measures.lag == 10
    assert measures.intake.taken_by_topic.total() + measures.intake.not_taken.total() == 10
    assert 5 <= measures.oldest_age(fake.clock.now()) < 60
    answered.set()
    await finish(fake, work, lane, events)
    assert measures.batches.total == 10


async def test_attempts_are_measured_by_outcome_and_retries_by_tier(world: World) -> None:
    work, _ = await failing_counter(world, {("a", 0): 4})
    events = [world.event(work, "a", 0), world.event(work, "b", 0)]
    await world.post(*events)
    measured = HandlerMeasures()
    lane = await world.open(handlers={"bench.count": measured})
    await finished(world, work, lane, events, lambda: sum(measured.succeeded.counts) == 2)
    assert sum(measured.succeeded.counts) == 2
    assert sum(measured.failed.counts) == 4
    assert measured.succeeded.total > 0 < measured.failed.total
    assert dict(measured.retries) == {0: 2, 1: 1, 2: 1}
    assert dict(measured.failures) == {("transient", "TryAgain"): 2, ("transient", "Later"): 2}


async def test_an_async_handler_is_measured_with_what_it_waits_for(world: World) -> None:
    async def ask(key: str, i: int) -> None:
        await asyncio.to_thread(time.sleep, 0.01)  # measures are of real time

    work = await retrying_asker(world, ask)
    events = [world.event(work, key, 0) for key in "abc"]
    await world.post(*events)
    name = next(iter(world.app.handlers))
    measured = HandlerMeasures()
    lane = await world.open(handlers={name: measured})
    await all_counted(world, lane, 3)
    await finish(world, work, lane, events)
    assert sum(measured.succeeded.counts) == 3
    assert measured.succeeded.total >= 3 * 0.01


async def test_without_measures_no_handler_is_measured(fake: FakeWorld) -> None:
    await started(fake, counting(fake.name))
    lane = await fake.open()
    assert [gate.measures for gate in lane.lane.gates.values()] == [None]


async def test_a_lane_knows_how_much_it_has_still_to_recover(world: World) -> None:
    work = await retrying_counter(world)
    events = some(world, work, range(7), "a")
    first = await opened(world, *events)
    await all_counted(world, first, len(events))
    await first.stop()
    seen: list[int] = []

    class Watching:
        async def reach(self, point: str) -> None:
            if point == "recovering":
                seen.append(second.lane.measures.to_recover)

    second = world.lane(stores=world.stores(), faults=Watching())
    await world.until(lambda: second.lane.state == "open")
    assert seen[0] > 0
    assert second.lane.measures.recovery[0] == seen[0]
    assert second.lane.measures.to_recover == 0
