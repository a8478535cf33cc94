"""A saga with its participants in one application: a seat in rows, money outside, a ticket as the pivot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from streams.errors import TransientError
from streams.model.choreography import Choreography, choreography, on
from streams.model.handlers import Service
from streams.model.message import Row
from streams.model.table import Table
from streams.saga.definition import Saga, saga
from streams.saga.engine import orchestrate
from streams.saga.messages import Command, Reply, SagaTransition
from streams.saga.participant import Answer, Participant, done, refused
from streams.saga.participation import Participation
from streams.saga.state import SagaRow
from tests.keyed import Keyed


class TripReply(Reply, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "trips.saga.replies"
    SAME_KEY = True


class TripTransition(SagaTransition, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "trips.saga.transitions.v1"


class TripWanted(Keyed, frozen=True, kw_only=True):
    """A trip `to` somewhere; to `nowhere` there are no tickets."""

    TOPIC: ClassVar[str] = "trips.trip.wanted.v1"
    to: str


class TakeSeat(Command, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "seats.commands.take"
    SAME_KEY = True
    REPLY = TripReply


class LeaveSeat(Command, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "seats.commands.leave"
    SAME_KEY = True
    REPLY = TripReply


class TakeMoney(Command, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "money.commands.take"
    SAME_KEY = True
    REPLY = TripReply


class ReturnMoney(Command, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "money.commands.give-back"
    SAME_KEY = True
    REPLY = TripReply


class PrintTicket(Command, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "tickets.commands.print"
    SAME_KEY = True
    REPLY = TripReply
    to: str


class Seat(Row, frozen=True, kw_only=True):
    taken: bool


Trip = (
    saga("trip", started_by=TripWanted)
    .step("seat", TakeSeat, compensate=LeaveSeat, timeout=30)
    .step("money", TakeMoney, compensate=ReturnMoney, timeout=30)
    .pivot("ticket", PrintTicket, timeout=30)
)

TRIPS = Table("trips", SagaRow)
SEATS = Table("seats", Seat)
TICKETS = Table("tickets", Seat)
seats = Participant(Service("seats"), Table("seat-steps", Participation))
money = Participant(Service("money"), Table("money-steps", Participation))
tickets = Participant(Service("tickets"), Table("ticket-steps", Participation))


class Till:
    """Money outside: what it did, by operation; it does each once. While it is `closed` it takes none, while
    it is `empty` it gives none back.
    """

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.given_back: set[str] = set()
        self.closed = False
        self.empty = False
        self.asked = 0
        #: How long it takes to take money, in seconds.
        self.takes = 0.0
        self.clock: Any = None


@seats.command(seat=SEATS)
def take_seat(command: TakeSeat, seat: Seat | None) -> Answer:
    assert seat is None or not seat.taken
    return done(seat=Seat(taken=True))


@seats.compensation(seat=SEATS)
def leave_seat(command: LeaveSeat, seat: Seat | None) -> Answer:
    assert seat is not None
    assert seat.taken
    return done(seat=Seat(taken=False))


@money.command()
async def take_money(command: TakeMoney, *, till: Till) -> Answer:
    till.asked += 1
    if till.closed:
        raise TransientError("closed")
    if till.takes:
        await till.clock.sleep(till.takes)
    assert command.operation not in till.given_back
    till.taken.add(command.operation)
    return done()


@money.compensation()
async def return_money(command: ReturnMoney, *, till: Till) -> Answer:
    if till.empty:
        raise TransientError("empty")
    if command.operation in till.taken:
        till.given_back.add(command.operation)
    return done()


@tickets.command(ticket=TICKETS)
def print_ticket(command: PrintTicket, ticket: Seat | None) -> Answer:
    assert ticket is None
    return refused("nowhere") if command.to == "nowhere" else done(ticket=Seat(taken=True))


@dataclass(frozen=True)
class Trips:
    wiring: Choreography
    resources: dict[str, Any]
    till: Till


def trips(clock: Any, *, participants: bool = True, versions: Sequence[Saga] = (Trip,)) -> Trips:
    trip = orchestrate(*versions, service=Service("trips"), table=TRIPS, log=TripTransition)
    lines = [on(TripWanted, trip), on(TripReply, trip)]
    if participants:
        lines += [
            on(TakeSeat, take_seat),
            on(LeaveSeat, leave_seat),
            on(TakeMoney, take_money),
            on(ReturnMoney, return_money),
            on(PrintTicket, print_ticket),
        ]
    till = Till()
    resources = {"clock": clock, "till": till} if participants else {"clock": clock}
    return Trips(choreography(*lines), resources, till)
