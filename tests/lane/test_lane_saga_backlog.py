"""A backlog, an outage or an overload of the application itself cancels nothing: deadlines know of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from lane_checker import latest
from lane_pausing import asked
from lane_sagas import GiveMoneyBack, LeaveSeat, TakeMoney, TripWanted, trips
from lane_visits import visits
from lane_worlds import FakeWorld, Post, World

from streams.model.envelope import new_headers
from streams.model.message import Message
from streams.model.operations import HandlerCommand
from streams.model.row_keys import split_row_key
from streams.policy.breaker import BreakerPolicy
from streams.policy.retry import RetryPolicy
from streams.saga.state import SagaRow


def post(world: World, message: Message) -> Post:
    body = world.app.message_codecs[message.TOPIC].encode(message)
    headers = new_headers(message.TOPIC, message.key, source="outside", time=1e9, message_id=message.key)
    return world.raw(message.TOPIC, message.key, body, headers)


async def sagas(world: World, table: str) -> dict[str, SagaRow]:
    return {
        split_row_key(key)[0].decode(): msgspec.json.decode(value[8:], type=SagaRow)
        for (_, key), value in (await latest(world, table)).items()
    }


async def all_ended(world: World, table: str, number: int, *, every: float = 0.2) -> dict[str, SagaRow]:
    """Wait until so many sagas are there, and all of them have ended; looked at every so many seconds."""
    found: dict[str, SagaRow] = {}

    async def watch() -> None:
        while len(found) < number or not all(row.ended for row in found.values()):
            await world.clock.sleep(every)
            found.update(await sagas(world, table))

    watching = world.spawn(watch())
    await world.until(watching.done)
    return found


def keys_of(world: World, lane: int, name: str, number: int) -> list[str]:
    """Keys that a lane has."""
    layout = world.app.layout
    names = (f"{name}-{i}" for i in range(1000))
    own = set(layout.partitions_of(lane))
    return [key for key in names if layout.partition_of(key.encode()) in own][:number]


async def told(world: World, topic: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(each.value or b"") for each in await world.records(topic)]


@pytest.mark.parametrize("behind", ["hotel", "kitchen"])
async def test_a_participant_that_is_far_behind_cancels_nothing(world: World, behind: str) -> None:
    """By two deadlines and more; on the fake broker by over 60 s. The kitchen is two messages away."""
    timeout = 30.0 if world.is_fake else 0.5
    work = visits(world.name, world.clock, timeout)
    await world.start(work, lanes=2)
    near, far = keys_of(world, 0, "place", 1)[0], keys_of(world, 1, "place", 1)[0]
    places = {"hotel": near, "kitchen": near} | {behind: far}
    wanted = [work.wanted(k=key, **places) for key in keys_of(world, 0, "visit", 5)]
    began = world.clock.now()
    await world.post(*(post(world, each) for each in wanted))
    lane = await world.open(0)
    await world.until(lambda: lane.lane.counters.timers >= 2 * len(wanted))  # each was asked after twice
    assert world.clock.now() - began >= 3 * timeout
    await world.open(1)
    ended = await all_ended(world, "visits", len(wanted))
    assert {row.status for row in ended.values()} == {"completed"}
    assert [*await world.records(work.leave), *await world.records(work.cancel)] == []
    sent = work.book if behind == "hotel" else work.order
    assert len(await world.records(sent)) >= 3 * len(wanted)
    await world.settled(*world.app.routes)
    assert len(await world.records(work.cook)) == len(wanted)
    answers = [(each["step"], each["outcome"]) for each in await told(world, work.replies)]
    assert answers.count(("room", "success")) == answers.count(("meal", "success")) == len(wanted)


async def test_what_was_not_begun_in_a_pause_is_cancelled_and_not_undone(world: World) -> None:
    work = visits(world.name, world.clock, 30.0 if world.is_fake else 0.5)
    await world.start(work, lanes=2)
    near, hotel = keys_of(world, 0, "place", 1)[0], keys_of(world, 1, "place", 1)[0]
    key = keys_of(world, 0, "visit", 1)[0]
    await world.open(0)
    other = await world.open(1)
    await asked(world, HandlerCommand.PAUSE, "hotels.book")
    await world.post(post(world, work.wanted(k=key, hotel=hotel, kitchen=near)))
    row = (await all_ended(world, "visits", 1))[key]
    assert (row.status, row.reason) == ("compensated", "timed_out")
    assert row.step("room").error == "cancelled: it was not begun in time"
    assert await world.records(work.leave) == []
    await asked(world, HandlerCommand.RESUME, "hotels.book")
    await world.until(lambda: not other.lane.gates["hotels.book"].queues and not other.lane.backlog)
    await world.settled(*world.app.routes)
    assert await latest(world, "rooms") == {}
    assert [each["outcome"] for each in await told(world, work.replies)][:2] == ["timed_out", "cancelled"]


@pytest.mark.parametrize("nth", range(1, 7))
async def test_an_outage_past_every_deadline_cancels_nothing(fake: FakeWorld, nth: int) -> None:
    """Wherever it begins: with commands unread, with replies, or with both."""
    work = trips(fake.clock)
    await fake.start(work, loopback=False)
    keys = [f"{i}" for i in range(20)]
    await fake.post(*(post(fake, TripWanted(k=key, to="home")) for key in keys))
    fake.faults.kill_at("committed", nth=nth)
    await fake.lane().killed()
    fake.clock.set(fake.clock.now() + 300)
    await fake.open()
    ended = await all_ended(fake, "trips", len(keys))
    assert {row.status for row in ended.values()} == {"completed"}
    assert len(work.till.taken) == len(keys)
    assert [*await fake.records(LeaveSeat.TOPIC), *await fake.records(GiveMoneyBack.TOPIC)] == []


#: After which commit the command that takes money is there, and nobody has read it.
ASKED_FOR_MONEY = 3


async def test_a_command_that_has_lain_long_is_tried_again_as_long_as_one_that_has_not(
    fake: FakeWorld,
) -> None:
    work = trips(fake.clock)
    work.till.closed = True
    await fake.start(work, retry=RetryPolicy(immediate=0, delays=(10.0, 10.0, 10.0)), loopback=False)
    await fake.post(post(fake, TripWanted(k="a", to="home")))
    fake.faults.kill_at("committed", nth=ASKED_FOR_MONEY)
    await fake.lane().killed()
    assert await fake.records(TakeMoney.TOPIC)
    tried = work.till.asked  # nobody knows of that
    fake.clock.set(fake.clock.now() + 300)
    await fake.open()
    await fake.until(lambda: work.till.asked == tried + 2)  # at once and after 10 s
    work.till.closed = False
    assert (await all_ended(fake, "trips", 1))["a"].status == "completed"


async def test_a_command_that_has_lain_long_is_given_up_when_its_time_is_over(fake: FakeWorld) -> None:
    work = trips(fake.clock)
    work.till.closed = True
    await fake.start(work, retry=RetryPolicy(immediate=0, delays=(10.0, 10.0, 10.0)), loopback=False)
    await fake.post(post(fake, TripWanted(k="a", to="home")))
    fake.faults.kill_at("committed", nth=ASKED_FOR_MONEY)
    await fake.lane().killed()
    tried = work.till.asked
    fake.clock.set(fake.clock.now() + 300)
    taken = fake.clock.now()
    await fake.open()
    row = (await all_ended(fake, "trips", 1))["a"]
    assert work.till.asked == tried + 3  # the fourth would be more than 30 s after it was taken
    assert row.step("money").error == "error: TransientError: closed"
    assert 20 <= row.log[-1].time - taken < 30


async def test_what_an_open_breaker_holds_up_ends_at_its_deadline_tried_before_or_not(
    fake: FakeWorld,
) -> None:
    work = trips(fake.clock)
    work.till.closed = True
    breaker = BreakerPolicy(minimum=4, open_for=300.0, max_open_for=300.0)
    await fake.start(work, retry=RetryPolicy(immediate=0, delays=(10.0,)), breaker=breaker, max_in_flight=2)
    keys = [f"{i}" for i in range(8)]
    began = fake.clock.now()
    await fake.post(*(post(fake, TripWanted(k=key, to="home")) for key in keys))
    lane = await fake.open()
    await fake.until(lambda: len(lane.lane.gates["money.take_money"].queues) == len(keys))
    assert 4 <= work.till.asked < len(keys)
    ended = await all_ended(fake, "trips", len(keys))
    assert {row.status for row in ended.values()} == {"compensated"}
    assert max(row.log[-1].time for row in ended.values()) - began < 40
    assert work.till.taken == set()


async def test_a_try_that_was_planned_in_time_is_made_however_late_the_lane_is(fake: FakeWorld) -> None:
    work = trips(fake.clock)
    work.till.closed = True
    await fake.start(work, retry=RetryPolicy(immediate=0, delays=(10.0, 10.0, 10.0)))
    await fake.post(post(fake, TripWanted(k="a", to="home")))
    lane = await fake.open()
    await fake.until(lambda: work.till.asked == 1)
    await fake.settled(TakeMoney.TOPIC)
    await lane.stop()
    work.till.closed = False
    fake.clock.set(fake.clock.now() + 60)
    await fake.open()
    assert (await all_ended(fake, "trips", 1))["a"].status == "completed"
    assert work.till.asked == 2


@pytest.mark.slow("a thousand sagas")
async def test_a_thousand_sagas_at_once_on_a_slow_lane_are_no_storm_of_compensations(fake: FakeWorld) -> None:
    """Each takes the till half a second, eight go side by side: the last one waits for two deadlines."""
    work = trips(fake.clock)
    work.till.takes, work.till.clock = 0.5, fake.clock
    await fake.start(work, max_in_flight=8)
    number = 1000
    await fake.post(*(post(fake, TripWanted(k=f"{i}", to="home")) for i in range(number)))
    began = fake.clock.now()
    await fake.open()
    ended = await all_ended(fake, "trips", number, every=10)
    assert fake.clock.now() - began > 60
    assert {row.status for row in ended.values()} == {"completed"}
    assert [*await fake.records(LeaveSeat.TOPIC), *await fake.records(GiveMoneyBack.TOPIC)] == []
    assert len(await fake.records(TakeMoney.TOPIC)) < 2.5 * number
