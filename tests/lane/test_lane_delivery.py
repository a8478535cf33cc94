"""Each event is handled exactly once, whatever comes twice and wherever the lane ends."""

from itertools import pairwise

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_failing import Failing, finish, started
from lane_pausing import some
from lane_workloads import counting
from lane_worlds import FakeWorld, World

from streams.errors import PermanentError, TransientError
from streams.model.policy.retry import RetryPolicy
from streams.testing import ManualClock, ScriptedFaults


@pytest.mark.promise("duplicates")
@pytest.mark.landing
async def test_duplicates_are_dropped_also_after_a_lost_disk(world: World) -> None:
    """In a batch and across batches."""
    await world.start(work := counting(world.name))
    events = some(world, work, range(3), "abcd")
    await world.post(*events, *events)
    lane = await world.open()
    await world.until(lambda: lane.handled + lane.lane.counters.duplicates == 2 * len(events))
    assert lane.lane.counters.duplicates == len(events)
    await world.post(*events)
    await world.until(lambda: lane.lane.counters.duplicates == 2 * len(events))
    await world.settled(work.source)
    await lane.stop()
    elsewhere = world.stores()
    await world.post(*events)
    lane = await world.open(stores=elsewhere)
    assert lane.lane.recovered > 0
    await world.until(lambda: lane.lane.counters.duplicates == len(events))
    await world.settled(work.source)
    await lane.stop()
    assert lane.handled == 0
    await check(world, work, events)
    await check_store(world, stores=elsewhere)


@pytest.mark.promise("duplicates")
@pytest.mark.parametrize("how", ["given up", "waits"])
async def test_what_failed_and_comes_again_is_a_duplicate(world: World, how: str) -> None:
    await started(world, work := counting(world.name), retry=RetryPolicy(immediate=0, delays=(1.0,)))
    error = PermanentError("never") if how == "given up" else TransientError("busy")
    work.hooks.before = failing = Failing(world, {("a", 0): 1}, error)
    event = world.event(work, "a", 0)
    await world.post(event)
    lane = await world.open()
    await world.settled(work.source)
    await lane.stop()
    await world.post(event)
    lane = await world.open(stores=(elsewhere := world.stores()))
    await world.until(lambda: lane.lane.counters.duplicates == 1)
    await world.until(lambda: not any(gate.queues for gate in lane.lane.gates.values()))
    await world.settled(work.source)
    await lane.stop()
    given_up = how == "given up"
    assert len(failing.of("a", 0)) == (1 if given_up else 2)
    assert len(await dead_letters(world, work.source)) == given_up
    await check(world, work, [] if given_up else [event])
    await check_store(world, stores=elsewhere)


@pytest.mark.promise("duplicates")
async def test_the_same_id_of_another_source_is_another_message(world: World) -> None:
    await world.start(work := counting(world.name))
    one = world.event(work, "a", 1)
    other = one._replace(headers=[(n, b"elsewhere" if n == "ce_source" else v) for n, v in one.headers])
    await world.post(one, other)
    lane = await world.open()
    await world.until(lambda: lane.handled == 2)
    await world.settled(work.source)
    await lane.stop()
    assert await counts(world) == {"a": 2}
    assert len({dict(record.headers)["ce_id"] for record in await world.records(work.output)}) == 2


@pytest.mark.promise("duplicates")
async def test_two_handlers_of_one_event_each_run_once(world: World) -> None:
    await world.start(work := counting(world.name, tallied=True))
    events = some(world, work, range(4), "abcd")
    await world.post(*events, *events)
    lane = await world.open()
    await world.until(lambda: lane.handled == len(events))
    await finish(world, work, lane, events)
    await check(world, work, events, table="tallies")


async def test_a_commit_waits_for_more_messages_unless_it_is_full(fake: FakeWorld) -> None:
    await fake.start(work := counting(fake.name), max_batch=5, linger=10.0)
    lane = await fake.open()
    events = [fake.event(work, "a", i) for i in range(5)]
    began = fake.clock.now()
    await fake.post(*events)
    await fake.until(lambda: lane.lane.commits == 1)
    assert fake.clock.now() - began < 5.0
    await fake.post(last := fake.event(work, "a", 5))
    await fake.until(lambda: lane.lane.commits == 2)
    assert fake.clock.now() - began >= 10.0
    await lane.stop()
    await check(fake, work, [*events, last])


class SlowTransactions(ScriptedFaults):
    """Each takes 40 ms."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.begun: list[float] = []

    async def reach(self, point: str) -> None:
        if point == "begun":
            self.begun.append(self.clock.now())
            await self.clock.sleep(0.04)
        await super().reach(point)


async def test_a_lane_rests_between_long_transactions_unless_they_are_full(fake: FakeWorld) -> None:
    work, slow = counting(fake.name), SlowTransactions(fake.clock)
    await fake.start(work, max_batch=5)
    lane = await fake.open(faults=slow)
    events = [fake.event(work, "a", i) for i in range(7)]
    for number, some_of_them in enumerate((events[:1], events[1:2], events[2:]), 1):
        await fake.post(*some_of_them)  # while the one before is under way
        await fake.until(lambda number=number: len(slow.begun) == number)
    one, full = (later - earlier - 0.04 for earlier, later in pairwise(slow.begun))
    assert one >= 0.07
    assert full < 0.07
    await fake.until(lambda: lane.lane.commits == 3)
    await fake.clock.advance(60.0)
    await fake.post(last := fake.event(work, "a", 7))
    began = fake.clock.now()
    await fake.until(lambda: len(slow.begun) == 4)
    assert slow.begun[-1] - began < 0.08, "it was idle"
    await finish(fake, work, lane, [*events, last])
