"""A journey: the saga of the tests, with what it says and hears."""

from typing import Any, ClassVar

import msgspec

from streams.model.message import Message
from streams.saga.definition import Saga, saga
from streams.saga.messages import Command, Repair, Reply, SagaTransition
from streams.testing.sagas import SagaUnderTest, given_saga, success


class OfJourney(Message, frozen=True, kw_only=True):
    journey: str

    @property
    def key(self) -> str:
        return self.journey


class JourneyReply(Reply, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "travel.saga.replies"


class JourneyTransition(SagaTransition, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "travel.saga.transitions.v1"


class JourneyRepair(Repair, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "travel.saga.repairs"


class JourneyWanted(OfJourney, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "travel.journey.wanted.v1"
    cents: int
    insured: bool = False


class JourneyCommand(Command, frozen=True, kw_only=True):
    REPLY = JourneyReply


class BookTrain(JourneyCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "trains.commands.book"
    journey: str


class CancelTrain(JourneyCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "trains.commands.cancel"
    seat: int | None = None


class BookHotel(JourneyCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "hotels.commands.book"
    seat: int


class CancelHotel(JourneyCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "hotels.commands.cancel"


class BookInsurance(JourneyCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "insurance.commands.book"


class CancelInsurance(JourneyCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "insurance.commands.cancel"


class Pay(JourneyCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "payments.commands.pay"
    cents: int


class SendTickets(JourneyCommand, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "tickets.commands.send"


class JourneyBooked(OfJourney, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "travel.journey.booked.v1"
    seat: int


class JourneyOff(OfJourney, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "travel.journey.off.v1"
    reason: str


class Seat(msgspec.Struct, frozen=True):
    seat: int


def begun() -> Saga:
    return saga("journey", started_by=JourneyWanted)


Journey = (
    begun()
    .step("train", BookTrain, compensate=CancelTrain, reply=Seat, timeout=30)
    .step("hotel", BookHotel, compensate=CancelHotel, timeout=30)
    .pivot("pay", Pay, timeout=10)
    .step("tickets", SendTickets, timeout=60)
    .ends(completed=JourneyBooked, compensated=JourneyOff)
)

WANTED = JourneyWanted(journey="j-1", cents=900)


def started(**options: Any) -> SagaUnderTest:
    return given_saga(Journey, **options).start(WANTED).expect_command(BookTrain, journey="j-1")


def with_train() -> SagaUnderTest:
    return started().reply(success, Seat(7)).expect_command(BookHotel, seat=7)


def with_hotel() -> SagaUnderTest:
    return with_train().reply(success).expect_command(Pay, cents=900)


def paid() -> SagaUnderTest:
    return with_hotel().reply(success).expect_command(SendTickets)
