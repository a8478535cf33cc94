"""A backlog, an outage or an overload of the application itself cancels nothing: deadlines know of it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pytest
from lane_checker import latest
from lane_pausing import asked
from lane_sagas import TRIPS, LeaveSeat, ReturnMoney, TakeMoney, Trips, TripWanted, trips
from lane_scenes import opened, post, rows_of, stopped, until_so
from lane_worlds import FakeWorld, World

from streams.model.choreography import Choreography, choreography, on
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.operations import HandlerCommand
from streams.model.outcome import Outcome, nothing, outcome
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RetryPolicy
from streams.model.table import Table
from streams.saga.definition import saga
from streams.saga.engine import orchestrate
from streams.saga.messages import Command, Reply, SagaTransition
from streams.saga.participant import Answer, Participant, done, later
from streams.saga.participation import Participation
from streams.saga.state import SagaRow
from tests.keyed import Keyed

VISITS = Table("visits", SagaRow)


class Wanted(Keyed, frozen=True, kw_only=True):
    """Somebody wants a room in a hotel, and a meal from a kitchen."""

    hotel: str
    kitchen: str


class AtHotel(Command, frozen=True, kw_only=True):
    """Under the hotel's key."""

    hotel: str

    @property
    def key(self) -> str:
        return self.hotel


class Rooms(Row, frozen=True, kw_only=True):
    taken: int


@dataclass(frozen=True)
class Visits:
    """The saga and its participants, and the topics that they talk by."""

    wiring: Choreography
    resources: dict[str, Any]
    wanted: type[Wanted]
    replies: str
    book: str
    leave: str
    order: str
    cancel: str
    cook: str


def visits(prefix: str, clock: Any, timeout: float) -> Visits:
    """A saga that waits so many seconds for a reply; its topics begin with `prefix`."""

    class VisitWanted(Wanted, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = f"{prefix}.visit.wanted.v1"

    class VisitReply(Reply, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = f"{prefix}.visit.replies"

    class VisitTransition(SagaTransition, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = f"{prefix}.visit.transitions.v1"

    class BookRoom(AtHotel, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = f"{prefix}.hotel.book"
        REPLY = VisitReply

    class LeaveRoom(AtHotel, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = f"{prefix}.hotel.leave"
        REPLY = VisitReply

    class OrderMeal(Command, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = f"{prefix}.meal.order"
        REPLY = VisitReply
        kitchen: str

    class CancelMeal(Command, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = f"{prefix}.meal.cancel"
        REPLY = VisitReply

    class Cook(Message, frozen=True, kw_only=True):
        """Under the kitchen's key."""

        TOPIC: ClassVar[str] = f"{prefix}.meal.cook"
        k: str
        kitchen: str

        @property
        def key(self) -> str:
            return self.kitchen

    class Cooked(Keyed, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = f"{prefix}.meal.cooked.v1"

    hotels = Participant(Service("hotels"), Table("hotel-steps", Participation))
    meals = Participant(Service("meals"), Table("meal-steps", Participation))
    kitchens = Service("kitchens")
    rooms_of = Table("rooms", Rooms)

    @hotels.command(rooms=rooms_of)
    def book(command: BookRoom, rooms: Rooms | None) -> Answer:
        return done(rooms=Rooms(taken=1 + (rooms.taken if rooms else 0)))

    @hotels.compensation(rooms=rooms_of)
    def leave(command: LeaveRoom, rooms: Rooms | None) -> Answer:
        assert rooms is not None
        return done(rooms=Rooms(taken=rooms.taken - 1))

    @meals.command(sends=[Cook])
    def order(command: OrderMeal) -> Answer:
        return later(send=[Cook(k=command.saga_id.partition(":")[2], kitchen=command.kitchen)])

    @meals.compensation()
    def cancel(command: CancelMeal) -> Answer:
        return done()

    @kitchens.handler(sends=[Cooked])
    def cook(command: Cook) -> Outcome:
        return outcome(send=[Cooked(k=command.k)])

    @kitchens.handler(sends=[VisitReply], participation=meals.row_of("visit", "meal"))
    def serve(event: Cooked, participation: Participation | None) -> Outcome:
        if participation is None or participation.status != "working":
            return nothing("nobody waits for it any more")
        served = participation.answered("done")
        return outcome(participation=served, send=[served.reply(VisitReply)])

    visit = (
        saga("visit", started_by=VisitWanted)
        .step("room", BookRoom, compensate=LeaveRoom, timeout=timeout)
        .step("meal", OrderMeal, compensate=CancelMeal, timeout=timeout)
    )
    conducted = orchestrate(visit, service=Service("visits"), table=VISITS, log=VisitTransition)
    lines = [
        on(VisitWanted, conducted),
        on(VisitReply, conducted),
        on(BookRoom, book),
        on(LeaveRoom, leave),
        on(OrderMeal, order),
        on(CancelMeal, cancel),
        on(Cook, cook),
        on(Cooked, serve),
    ]
    return Visits(
        choreography(*lines),
        {"clock": clock},
        VisitWanted,
        VisitReply.TOPIC,
        BookRoom.TOPIC,
        LeaveRoom.TOPIC,
        OrderMeal.TOPIC,
        CancelMeal.TOPIC,
        Cook.TOPIC,
    )


async def all_ended(world: World, number: int, table: Any = TRIPS, every: float = 0.2) -> dict[str, SagaRow]:
    """Wait until so many sagas are there, and all of them have ended; looked at every so many seconds."""
    found: dict[str, SagaRow] = {}

    async def over() -> bool:
        found.update(await rows_of(world, table))
        return len(found) == number and all(row.ended for row in found.values())

    await until_so(world, over, every=every)
    return found


async def closed(world: FakeWorld, *delays: float, keys: Collection[str] = ("a",), **options: Any) -> Trips:
    """Trips whose till is closed; their money is tried again after these delays."""
    work = trips(world.clock)
    work.till.closed = True
    await world.start(work, retry=RetryPolicy(immediate=0, delays=delays), **options)
    await world.post(*(post(world, TripWanted(k=key, to="home")) for key in keys))
    return work


async def lain_long(world: FakeWorld) -> Trips:
    """Such a trip; its lane was killed five minutes ago, before anybody read the command that takes money."""
    work = await closed(world, 10.0, 10.0, 10.0, loopback=False)
    world.faults.kill_at("committed", nth=3)
    await world.lane().killed()
    assert await world.records(TakeMoney.TOPIC)
    world.clock.set(world.clock.now() + 300)
    return work


def keys_of(world: World, lane: int, name: str, number: int) -> list[str]:
    """Keys that a lane has."""
    layout = world.app.layout
    names = (f"{name}-{i}" for i in range(1000))
    own = set(layout.partitions_of(lane))
    return [key for key in names if layout.partition_of(key.encode()) in own][:number]


async def told(world: World, topic: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(each.value or b"") for each in await world.records(topic)]


@pytest.mark.promise("saga-backlog", "60 s behind; the command's own lane, or one that is two messages away")
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
    lane = await opened(world, *(post(world, each) for each in wanted))
    await world.until(lambda: lane.lane.counters.timers >= 2 * len(wanted))  # each was asked after twice
    assert world.clock.now() - began >= 3 * timeout
    await world.open(1)
    ended = await all_ended(world, len(wanted), VISITS)
    assert {row.status for row in ended.values()} == {"completed"}
    assert [*await world.records(work.leave), *await world.records(work.cancel)] == []
    sent = work.book if behind == "hotel" else work.order
    assert len(await world.records(sent)) >= 3 * len(wanted)
    await world.settled(*world.app.routes)
    assert len(await world.records(work.cook)) == len(wanted)
    answers = [(each["step"], each["outcome"]) for each in await told(world, work.replies)]
    assert answers.count(("room", "success")) == answers.count(("meal", "success")) == len(wanted)


@pytest.mark.promise("saga-not-begun")
async def test_what_was_not_begun_is_cancelled_and_not_undone(world: World) -> None:
    work = visits(world.name, world.clock, 30.0 if world.is_fake else 0.5)
    await world.start(work, lanes=2)
    near, hotel = keys_of(world, 0, "place", 1)[0], keys_of(world, 1, "place", 1)[0]
    key = keys_of(world, 0, "visit", 1)[0]
    await world.open(0)
    other = await world.open(1)
    await asked(world, HandlerCommand.PAUSE, "hotels.book")
    await world.post(post(world, work.wanted(k=key, hotel=hotel, kitchen=near)))
    row = (await all_ended(world, 1, VISITS))[key]
    assert (row.status, row.reason) == ("compensated", "timed_out")
    assert row.step("room").error == "cancelled: it was not begun in time"
    assert await world.records(work.leave) == []
    await asked(world, HandlerCommand.RESUME, "hotels.book")
    await world.until(lambda: not other.lane.gates["hotels.book"].queues and not other.lane.backlog)
    await world.settled(*world.app.routes)
    assert await latest(world, "rooms") == {}
    assert [each["outcome"] for each in await told(world, work.replies)][:2] == ["timed_out", "cancelled"]


@pytest.mark.promise("saga-backlog", "begun after each of six commits")
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
    ended = await all_ended(fake, len(keys))
    assert {row.status for row in ended.values()} == {"completed"}
    assert len(work.till.taken) == len(keys)
    assert [*await fake.records(LeaveSeat.TOPIC), *await fake.records(ReturnMoney.TOPIC)] == []


@pytest.mark.promise("saga-backlog")
async def test_a_command_that_has_lain_long_is_tried_again(fake: FakeWorld) -> None:
    work = await lain_long(fake)
    tried = work.till.asked  # nobody knows of that
    await fake.open()
    await fake.until(lambda: work.till.asked == tried + 2)  # at once and after 10 s
    work.till.closed = False
    assert (await all_ended(fake, 1))["a"].status == "completed"


async def test_a_command_that_has_lain_long_is_given_up(fake: FakeWorld) -> None:
    work = await lain_long(fake)
    tried, taken = work.till.asked, fake.clock.now()
    await fake.open()
    row = (await all_ended(fake, 1))["a"]
    assert work.till.asked == tried + 3  # the fourth would be more than 30 s after it was taken
    assert row.step("money").error == "error: TransientError: closed"
    assert 20 <= row.log[-1].time - taken < 30


@pytest.mark.promise("saga-not-begun")
async def test_what_a_breaker_holds_up_ends_at_its_deadline(fake: FakeWorld) -> None:
    breaker = BreakerPolicy(minimum=4, open_for=300.0, max_open_for=300.0)
    keys, began = "01234567", fake.clock.now()
    work = await closed(fake, 10.0, keys=keys, breaker=breaker, max_in_flight=2)
    lane = await fake.open()
    await fake.until(lambda: len(lane.lane.gates["money.take_money"].queues) == len(keys))
    assert 4 <= work.till.asked < len(keys)
    ended = await all_ended(fake, len(keys))
    assert {row.status for row in ended.values()} == {"compensated"}
    assert max(row.log[-1].time for row in ended.values()) - began < 40
    assert work.till.taken == set()


@pytest.mark.promise("saga-backlog")
async def test_a_try_planned_in_time_is_made_however_late(fake: FakeWorld) -> None:
    work = await closed(fake, 10.0, 10.0, 10.0)
    lane = await fake.open()
    await fake.until(lambda: work.till.asked == 1)
    await stopped(fake, lane, TakeMoney.TOPIC)
    work.till.closed = False
    fake.clock.set(fake.clock.now() + 60)
    await fake.open()
    assert (await all_ended(fake, 1))["a"].status == "completed"
    assert work.till.asked == 2


@pytest.mark.promise("saga-backlog")
@pytest.mark.slow("a thousand sagas")
async def test_a_thousand_sagas_are_no_storm_of_compensations(fake: FakeWorld) -> None:
    """Each takes the till half a second, eight go side by side: the last one waits for two deadlines."""
    work = trips(fake.clock)
    work.till.takes, work.till.clock = 0.5, fake.clock
    await fake.start(work, max_in_flight=8)
    number = 1000
    await fake.post(*(post(fake, TripWanted(k=f"{i}", to="home")) for i in range(number)))
    began = fake.clock.now()
    await fake.open()
    ended = await all_ended(fake, number, every=10)
    assert fake.clock.now() - began > 60
    assert {row.status for row in ended.values()} == {"completed"}
    assert [*await fake.records(LeaveSeat.TOPIC), *await fake.records(ReturnMoney.TOPIC)] == []
    assert len(await fake.records(TakeMoney.TOPIC)) < 2.5 * number
