"""A saga whose participants are in other lanes than its row: a hotel and a kitchen have keys of their own.

The hotel answers at once, the kitchen through another message: a meal is written down where the saga is.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from streams.model.choreography import Choreography, choreography, on
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, nothing, outcome
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
