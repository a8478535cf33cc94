"""A participant: rooms are rows, and money is outside."""

from travel import BookHotel, CancelHotel, CancelInsurance, Pay, Seat

from streams.errors import PermanentError
from streams.model.handlers import Service
from streams.model.message import Row
from streams.model.table import Table
from streams.saga.participant import Answer, Participant, done, refused
from streams.saga.participation import Participation

SERVICE = Service("hotels")
STAYS = Table("hotel-steps", Participation)


class Rooms(Row, frozen=True, kw_only=True):
    free: int


ROOMS = Table("rooms", Rooms)
participant = Participant(SERVICE, STAYS)


@participant.command(rooms=ROOMS)
def book(command: BookHotel, rooms: Rooms | None) -> Answer:
    """Take a room."""
    if rooms is None or not rooms.free:
        return refused("full")
    return done(Seat(command.seat), rooms=Rooms(free=rooms.free - 1))


@participant.compensation(rooms=ROOMS)
def cancel(command: CancelHotel, rooms: Rooms | None) -> Answer:
    """Give the room back."""
    return done(rooms=Rooms(free=(rooms.free if rooms else 0) + 1))


class Till:
    """Money outside. What it was asked for it does once; `breaks` says whether the answer is lost."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        self.breaks: Exception | None = None

    async def take(self, operation: str, cents: int) -> None:
        self.taken.setdefault(operation, cents)
        if self.breaks is not None:
            raise self.breaks

    async def give_back(self, operation: str) -> None:
        self.taken.pop(operation, None)


@participant.command()
async def pay(command: Pay, *, till: Till) -> Answer:
    if command.cents < 0:
        raise PermanentError("less than nothing")
    await till.take(command.operation, command.cents)
    return done()


@participant.compensation()
async def give_back(command: CancelInsurance, *, till: Till) -> Answer:
    await till.give_back(command.operation)
    return done()
