"""An outage, however long, buries nothing, also where so little comes in that no breaker opens."""

from typing import Any

import pytest
from lane_checker import check, check_store, dead_letters
from lane_desk import letters
from lane_failing import Failing, expiring, finish, letters_of, pass_time
from lane_scenes import finished, opened, operated_on, retrying_counter, stopped
from lane_workloads import Workload
from lane_worlds import FakeWorld, Post, World

from streams.engine.waiting.dead_letters.row import LetterState
from streams.errors import PermanentError
from streams.model.operations import LetterCommand
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RetryPolicy

DAY = 86400.0
MINUTE = 60.0
#: Those of the application.
DEFAULTS: dict[str, Any] = {"retry": RetryPolicy(), "breaker": BreakerPolicy(), "outage_patience": 3 * DAY}
#: A lone message has spent all of its tries within a second.
SHORT: dict[str, Any] = {"retry": RetryPolicy(immediate=0, delays=(0.3, 0.5)), "outage_patience": DAY}


class Outside:
    """What the handlers call: away, or there but for some keys."""

    def __init__(self, *, away: bool) -> None:
        self.away = away
        self.refused: set[str] = set()
        self.calls: list[str] = []

    def __call__(self, event: Any) -> None:
        self.calls.append(event.k)
        if self.away or event.k in self.refused:
            raise ConnectionError("nobody there")


async def in_outage(world: World, *, away: bool = True, **lane_options: Any) -> tuple[Workload, Outside]:
    work = await retrying_counter(world, **lane_options)
    work.hooks.before = outside = Outside(away=away)
    return work, outside


async def hours_pass(world: FakeWorld, seconds: float) -> None:
    """Let time go on in steps that are a quarter of the shortest wait here, a minute."""
    end = world.clock.now() + seconds
    while world.clock.now() < end:
        world.clock.set(world.clock.now() + 15.0)
        await world.clock.advance(0.0)


async def passed_on(world: FakeWorld, work: Any, n: int, within: float) -> None:
    over = world.clock.now()
    await world.until(lambda: len(world.cluster.visible(work.output)) == n)
    assert world.clock.now() - over < within


@pytest.mark.promise("outage-patience", "in virtual time")
@pytest.mark.slow("a night of virtual time")
async def test_an_overnight_outage_ends_with_all_orders_settled(fake: FakeWorld) -> None:
    work, outside = await in_outage(fake, **DEFAULTS)
    lane = await fake.open()
    events: list[Post] = []
    for minute in range(8 * 60):
        events.append(fake.event(work, f"order-{minute}", 0))
        await fake.post(events[-1])
        await hours_pass(fake, MINUTE)
    outside.away = False
    await passed_on(fake, work, len(events), within=2 * MINUTE)
    await finish(fake, work, lane, events)
    assert await dead_letters(fake, work.source) == []


@pytest.mark.promise("outage-patience")
async def test_messages_too_few_for_a_breaker_outlast_the_outage(world: World) -> None:
    work, outside = await in_outage(world, **SHORT)
    events = [world.event(work, key, i) for key in "ab" for i in range(2)]
    lane = await opened(world, *events)
    await world.until(lambda: len(outside.calls) >= 12)  # six of each key, where three were all
    assert await dead_letters(world, work.source) == []
    outside.away = False
    await world.until(lambda: lane.handled >= 4 and not any(gate.queues for gate in lane.lane.gates.values()))
    await finish(world, work, lane, events)
    assert await dead_letters(world, work.source) == []


@pytest.mark.promise("outage-patience")
async def test_when_it_is_over_a_lone_message_is_soon_done(fake: FakeWorld) -> None:
    work, outside = await in_outage(fake, **DEFAULTS)
    event = fake.event(work, "a", 0)
    lane = await opened(fake, event)
    await hours_pass(fake, 4 * 3600.0)
    outside.away = False
    await passed_on(fake, work, 1, within=61.0)
    await finish(fake, work, lane, [event])


@pytest.mark.promise("outage-patience")
async def test_a_lane_that_opens_in_mid_outage_knows_of_it(world: World) -> None:
    work, outside = await in_outage(world, **SHORT)
    events = [world.event(work, "a", 0)]
    await world.post(*events)
    for tries in (2, 4, 6, 8):  # each lane lives for two tries, and three are all
        lane = await world.open()
        await world.until(lambda tries=tries: len(outside.calls) >= tries)
        await world.settled(work.source)
        await world.until(lambda lane=lane: not lane.lane.backlog)
        await lane.stop()
    assert await dead_letters(world, work.source) == []
    outside.away = False
    lane = await world.open()
    await world.until(lambda: not any(gate.queues for gate in lane.lane.gates.values()))
    await finish(world, work, lane, events)


@pytest.mark.promise("outage-patience")
async def test_a_message_that_fails_while_others_succeed_spends_its_tries(world: World) -> None:
    work, outside = await in_outage(world, away=False, **SHORT)
    outside.refused.add("bad")
    lane = await opened(world, world.event(work, "bad", 0))
    for other in range(4):
        await world.post(world.event(work, f"k{other}", 0))
        await world.until(lambda n=other + 1: outside.calls.count("bad") >= min(n, 3) and work.hooks.calls)
        await world.until(lambda key=f"k{other}": key in outside.calls)
    await world.until(lambda: lane.lane.counters.dead_letters == 1)
    await stopped(world, lane, work.source)
    (letter,) = await letters_of(world, work)
    assert (letter["ce_id"], letter["dlq-retry-count"]) == (b"bad-0", b"2")
    await check_store(world)


@pytest.mark.promise("outage-patience")
@pytest.mark.slow("three days of virtual time")
async def test_a_lone_failing_message_dies_when_patience_is_over(fake: FakeWorld) -> None:
    work, outside = await in_outage(fake, **{**DEFAULTS, "outage_patience": DAY})
    begun = fake.clock.now()
    lane = await opened(fake, fake.event(work, "a", 0))
    await hours_pass(fake, DAY)
    assert await dead_letters(fake, work.source) == []
    await fake.until(lambda: lane.lane.counters.dead_letters == 1)
    assert DAY < fake.clock.now() - begun < DAY + 8 * MINUTE
    assert len(outside.calls) < DAY / MINUTE + 10, "once a minute, no more"
    await lane.stop()


@pytest.mark.promise("outage-patience")
async def test_a_mistake_in_a_handler_is_no_outage(world: World) -> None:
    work, _ = await in_outage(world, **SHORT)
    work.hooks.before = failing = Failing(world, {("a", 0): 99}, ZeroDivisionError("oops"))
    lane = await opened(world, world.event(work, "a", 0))
    await world.until(lambda: lane.lane.counters.dead_letters == 1)
    await lane.stop()
    assert len(failing.tries) == 3


@pytest.mark.promise("outage-patience")
async def test_messages_that_can_never_succeed_say_nothing_of_the_outside(fake: FakeWorld) -> None:
    work, outside = await in_outage(fake, **SHORT)

    def before(event: Any) -> None:
        if event.k.startswith("bad"):
            raise PermanentError("never")
        outside(event)

    work.hooks.before = before
    good = fake.event(work, "a", 0)
    lane = await opened(fake, good)
    for n in range(10):
        await fake.post(fake.event(work, f"bad{n}", 0))
        await pass_time(fake, 1.0)
    outside.away = False
    await passed_on(fake, work, 1, within=1.0)
    await lane.stop()
    assert {letter["dlq-error-type"] for letter in await letters_of(fake, work)} == {b"PermanentError"}
    await check(fake, work, [good])


@pytest.mark.promise("outage-patience")
@pytest.mark.parametrize("immediate", [0, 2])
async def test_a_message_still_expires_in_an_outage(fake: FakeWorld, immediate: int) -> None:
    retry = RetryPolicy(immediate=immediate, delays=(0.3, 0.5))
    work, outside = await in_outage(fake, **{**SHORT, "retry": retry})
    lane = await opened(fake, expiring(fake.event(work, "a", 0), fake.clock.now() + 10.0))
    await pass_time(fake, 9.0)
    assert await dead_letters(fake, work.source) == []
    await pass_time(fake, 2.0)
    await stopped(fake, lane, work.source)
    (letter,) = await letters_of(fake, work)
    assert letter["ce_id"] == b"a-0", "it still expires"
    assert len(outside.calls) > 10
    assert [len(await fake.records(f"{work.source}.retry-{tier}")) for tier in (1, 2)] == [1, 0]


async def test_a_replay_in_an_outage_comes_back_as_a_letter(fake: FakeWorld) -> None:
    """Nobody can settle a letter while it is replayed: for days, if its tries were put off."""
    work, outside = await in_outage(fake, **SHORT)
    outside.away = False
    work.hooks.before = broken = Failing(fake, {("a", 0): 1}, PermanentError("never"))
    lane = await opened(fake, fake.event(work, "a", 0))
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    assert len(broken.tries) == 1
    work.hooks.before = outside
    outside.away = True
    await operated_on(fake, lane, LetterCommand.REPLAY)
    await pass_time(fake, 5.0)
    assert len(outside.calls) == 3
    (letter,) = await letters(fake)
    assert (letter.state, letter.replays) == (LetterState.DEAD, 1)
    await lane.stop()
    await check_store(fake)


async def test_an_outage_takes_none_of_a_message_s_tries(fake: FakeWorld) -> None:
    work, outside = await in_outage(fake, **SHORT)
    events = [fake.event(work, key, 0) for key in "ab"]
    lane = await opened(fake, events[0])
    await fake.until(lambda: len(outside.calls) >= 12)
    outside.away, outside.refused = False, {"a"}
    await fake.post(events[1])
    await fake.until(lambda: lane.lane.counters.retries == 2)  # its second late try, and its last
    outside.refused.clear()
    await finished(fake, work, lane, events, lambda: len(fake.cluster.visible(work.output)) == 2)
    assert await dead_letters(fake, work.source) == []
