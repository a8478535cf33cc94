"""Retries of many messages at once: an outage buries none and holds up none once it is over, what is due has
its turn under load, and memory is bounded.
"""

from typing import Any

import pytest
from lane_checker import dead_letters
from lane_failing import LATER, PATIENT, Failing, expiring, finish, pass_time, started
from lane_scenes import Outage, failing_counter, finished, opened, post, retried_asker, retrying_counter, some
from lane_workloads import counting
from lane_worlds import FakeWorld, Running, World

from streams.engine.life.housekeeping import HOUSEKEEPING
from streams.engine.staging.changes import QUEUES_BY_DUE
from streams.errors import TransientError
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RetryPolicy

#: Opens soon, and tries again each second.
QUICK_BREAKER = BreakerPolicy(minimum=5, open_for=1.0, max_open_for=1.0, probes=2)


def due_entries(lane: Running) -> int:
    """Entries of the index of what is due, stale ones among them."""
    assert lane.lane.store is not None
    return len(list(lane.lane.store.scan(QUEUES_BY_DUE)))


# -- an outage --------------------------------------------------------------------------------------------


@pytest.mark.promise("outages")
async def test_the_probes_of_a_long_outage_bury_no_message(fake: FakeWorld) -> None:
    world, outage, refused = fake, Outage(), [TransientError("busy")]

    def before(event: Any) -> None:
        outage(event)
        if event.k == "k5" and lane.lane.gates["bench.count"].away:
            raise TransientError("it is not the first to succeed")
        if event.k == "k5" and refused:
            raise refused.pop()

    work = await retrying_counter(world, breaker=QUICK_BREAKER)
    work.hooks.before = before
    events = [world.event(work, f"k{n}", 0) for n in range(10)]
    lane = await opened(world, *events)
    await pass_time(world, 120.0)
    assert len(work.hooks.calls) > 60
    assert await dead_letters(world, work.source) == []
    outage.down = False
    await world.until(lambda: len(world.cluster.visible(work.output)) == 10)
    assert refused == []
    await finish(world, work, lane, events)
    assert await dead_letters(world, work.source) == []


async def test_a_lane_that_opens_in_mid_outage_begins_with_probes(fake: FakeWorld) -> None:
    work = await retrying_counter(fake, breaker=QUICK_BREAKER)
    work.hooks.before = outage = Outage()
    events = [fake.event(work, f"k{n}", 0) for n in range(40)]
    lane = await opened(fake, *events)
    await fake.until(lambda: lane.lane.counters.waiting == 40 and not lane.lane.backlog)
    await lane.stop()
    tried = len(work.hooks.calls)
    lane = await fake.open()
    await pass_time(fake, 0.9 * QUICK_BREAKER.open_for)
    assert 0 < len(work.hooks.calls) - tried <= QUICK_BREAKER.probes
    outage.down = False
    await finished(fake, work, lane, events, lambda: len(fake.cluster.visible(work.output)) == 40)


@pytest.mark.promise("outages")
async def test_what_waited_for_an_async_handler_is_soon_done(fake: FakeWorld) -> None:
    world, outage = fake, Outage()

    async def ask(key: str, i: int) -> None:
        await world.clock.sleep(0.05)
        outage()

    work = await retried_asker(world, ask, breaker=QUICK_BREAKER, max_in_flight=8)
    events = [world.event(work, f"k{n}", 0) for n in range(40)]
    lane = await opened(world, *events)
    await pass_time(world, 10.0)
    outage.down, over = False, world.clock.now()
    await world.until(lambda: len(world.cluster.visible(work.output)) == 40)
    assert world.clock.now() - over < 3.0
    await finish(world, work, lane, events)


@pytest.mark.promise("due-turns")
async def test_while_a_due_head_lacks_a_place_none_is_lost(fake: FakeWorld) -> None:
    world, tried = fake, list[str]()

    async def ask(key: str, i: int) -> None:
        await world.clock.sleep(0.05 * (1 + i * 7 % 40))  # so that places become free one by one
        tried.append(key)
        if key == "late" and tried.count(key) == 1:
            raise TransientError("busy")

    work = await retried_asker(world, ask, retry=LATER, max_in_flight=8)
    events = [world.event(work, "late", 0), *(world.event(work, f"k{n}", n) for n in range(400))]
    lane = await opened(world, *events)
    await finished(world, work, lane, events, lambda: lane.handled == 401)
    assert tried.count("late") == 2


@pytest.mark.promise("outages")
async def test_messages_expired_in_an_outage_hold_up_nothing(fake: FakeWorld) -> None:
    work = await retrying_counter(fake, breaker=QUICK_BREAKER)
    work.hooks.before = outage = Outage()
    soon = fake.clock.now() + 0.5
    expired = [expiring(fake.event(work, f"e{n}", 0), soon) for n in range(30)]
    events = [fake.event(work, f"k{n}", 0) for n in range(10)]
    lane = await opened(fake, *expired, *events)
    await fake.until(lambda: lane.lane.counters.handled == 40)
    outage.down, over = False, fake.clock.now()
    await fake.until(lambda: len(fake.cluster.visible(work.output)) == 10)
    assert fake.clock.now() - over < 3.0
    await finish(fake, work, lane, events)
    assert len(await dead_letters(fake, work.source)) == 30


# -- turns ------------------------------------------------------------------------------------------------


@pytest.mark.promise("due-turns")
async def test_what_is_due_has_its_turn_in_a_full_lane(world: World) -> None:
    """There are always more new ones than the lane takes at a time, until the late ones are through."""
    work = await retrying_counter(world, retry=LATER, max_backlog=100)
    late = {(f"late-{n}", 0): 1 for n in range(20)}
    work.hooks.before = failing = Failing(world, late, TransientError("busy"))
    events = [world.event(work, key, i) for key, i in late]
    lane = await opened(world, *events)
    while not all(len(failing.of(*which)) == 2 for which in late):
        events += (
            new := [world.event(work, f"new-{i % 10}", i) for i in range(len(events), len(events) + 100)]
        )
        assert len(events) < 10_000, "they had no turn"
        await world.post(*new)
        await world.passes(0.05, real=0.01)
        most_done = len(events) - 200
        await world.until(lambda done=most_done: lane.handled > done)
    await finish(world, work, lane, events)


@pytest.mark.promise("due-turns")
async def test_handlers_share_room_and_take_turns_in_being_first(fake: FakeWorld) -> None:
    world, outage, again = fake, Outage(), []

    def tried(name: str) -> Any:
        def before(event: Any) -> None:
            outage(event)
            again.append(name)

        return before

    work = counting(world.name, tallied=True)
    await started(world, work, retry=RetryPolicy(immediate=0, delays=(20.0,)), max_backlog=4)
    work.hooks.before, work.hooks.before_tally = tried("count"), tried("tally")
    events = [world.event(work, f"k{n}", 0) for n in range(20)]
    lane = await opened(world, *events)
    await world.until(lambda: lane.lane.counters.retries == 40 and not lane.lane.backlog)
    outage.down = False
    await finished(world, work, lane, events, lambda: len(again) == 40)
    assert set(again[:4]) == {"count", "tally"}
    assert again[:12].count("count") == 6, again


@pytest.mark.promise("due-turns")
async def test_all_that_waited_follow_at_once(fake: FakeWorld) -> None:
    fake.clock.set(fake.clock.now() + 0.0004)  # a due time is in whole milliseconds, the clock is not
    work, failing = await failing_counter(fake, {("a", 0): 1}, retry=LATER)
    events = some(fake, work, range(50), "a")
    lane = await opened(fake, *events)
    await finished(fake, work, lane, events, lambda: bool(failing.of("a", 49)))
    assert failing.of("a", 49)[0] - failing.of("a", 0)[1] < 0.1


@pytest.mark.promise("due-turns")
async def test_a_due_message_has_its_turn_among_full_slots(fake: FakeWorld) -> None:
    world, tries, running, most = fake, [], 0, 0

    async def ask(key: str, i: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await world.clock.sleep(0.07)
        running -= 1
        if key == "bad":
            tries.append(world.clock.now())
            if len(tries) == 1:
                raise TransientError("busy")

    work = await retried_asker(world, ask, retry=LATER, max_in_flight=4)
    await world.post(world.event(work, "bad", 0), *(world.event(work, f"k{n}", 0) for n in range(400)))
    await world.open()
    await world.until(lambda: len(tries) == 2)
    assert tries[1] - tries[0] < 1.0
    assert len(work.hooks.calls) < 200, "there was more to do"
    assert most == 4


@pytest.mark.promise("due-turns")
async def test_a_due_message_has_its_turn_among_its_key(fake: FakeWorld) -> None:
    world, tries = fake, []

    async def ask(key: str, i: int) -> None:
        await world.clock.sleep(0.25)
        if i == 0:
            tries.append(world.clock.now())
            if len(tries) == 1:
                raise TransientError("busy")

    work = await retried_asker(world, ask, order_by=lambda event: str(event.i), retry=LATER)
    await world.post(world.event(work, "a", 0))
    await world.open()
    for i in range(1, 40):
        await world.post(world.event(work, "a", i))
        await pass_time(world, 0.2)
    assert len(tries) == 2
    assert tries[1] - tries[0] < 3.0


@pytest.mark.promise("due-turns")
async def test_slow_retries_of_a_handler_leave_others_their_turn(fake: FakeWorld) -> None:
    world, outage, settled = fake, Outage(), []

    async def ask(key: str, i: int) -> None:
        outage()
        await world.clock.sleep(2.0)

    def settle(event: Any) -> None:
        outage(event)
        settled.append(world.clock.now())

    work = counting(world.name, settled=True, ask=ask)
    work.hooks.before_settle = settle
    policy = RetryPolicy(immediate=0, delays=(1.0,))
    await started(world, work, retry=policy, breaker=PATIENT, max_in_flight=2)
    other = post(world, work.counted(k="z", i=0, n=0))
    lane = await opened(world, other, *(world.event(work, f"k{n}", 0) for n in range(30)))
    await world.until(lambda: lane.lane.counters.retries == 31)
    outage.down, over = False, world.clock.now()
    await world.until(lambda: bool(settled))
    assert settled[0] - over < 2.0


# -- bounds -----------------------------------------------------------------------------------------------


@pytest.mark.promise("due-turns")
@pytest.mark.parametrize("keys", [100, 1])
async def test_what_is_tried_again_stays_within_the_bound_in_bytes(fake: FakeWorld, keys: int) -> None:
    world, outage, most = fake, Outage(), 0

    def before(event: Any) -> None:
        nonlocal most
        outage(event)
        most = max(most, lane.lane.backlog)

    work = counting(world.name)
    await started(world, work, retry=RetryPolicy(immediate=0, delays=(2.0,)), max_backlog_bytes=50_000)
    work.hooks.before = before
    events = [world.event(work, f"k{i % keys}", i) for i in range(100)]
    padded = [e._replace(value=(e.value or b"")[:-1] + b',"p":"%b"}' % (b"p" * 9000)) for e in events]
    lane = await opened(world, *padded)
    await world.until(lambda: lane.lane.counters.waiting == 100)
    outage.down = False
    await finished(world, work, lane, events, lambda: len(world.cluster.visible(work.output)) == 100)
    assert 0 < most <= 50_000 // 9000 + 1


@pytest.mark.promise("due-turns")
async def test_housekeeping_leaves_nothing_of_queues_that_have_ended(fake: FakeWorld) -> None:
    work = await retrying_counter(fake, retry=RetryPolicy(immediate=0, delays=(0.3, 0.3, 0.3)))
    events = [fake.event(work, f"k{n}", 0) for n in range(100)]
    work.hooks.before = Failing(fake, {(f"k{n}", 0): 3 for n in range(100)}, TransientError("busy"))
    lane = await opened(fake, *events)
    await fake.until(lambda: len(fake.cluster.visible(work.output)) == 100)
    await fake.clock.advance(HOUSEKEEPING + 1.0)
    assert due_entries(lane) == 0
    await finish(fake, work, lane, events)


@pytest.mark.promise("due-turns")
async def test_entries_of_what_was_tried_do_not_pile_up(fake: FakeWorld) -> None:
    world, failed = fake, set()

    async def ask(key: str, i: int) -> None:
        await world.clock.sleep(0.05)
        if key not in failed:
            failed.add(key)
            raise TransientError("busy")

    work = await retried_asker(world, ask, retry=LATER, max_in_flight=4)
    lane = await opened(world, *(world.event(work, f"k{n}", 0) for n in range(300)))
    await world.until(lambda: len(world.cluster.visible(work.output)) > 100)
    done = len(world.cluster.visible(work.output))
    assert done < 150, "it is still busy"
    assert due_entries(lane) < len(failed) - done + 20
