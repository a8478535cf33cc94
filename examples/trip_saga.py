"""A saga: a trip takes a seat, then money. Without money the seat is given back.

By hand:

    export STEADFAUST_APP_ID=trips      # in both terminals
    steadfaust up
    faust -A examples.trip_saga worker      # in a second terminal
    python -m examples.trip_saga            # books two trips
    steadfaust saga list                    # one completed, one compensated
"""

from __future__ import annotations

import asyncio

from streams import Message, Service, Table, Worker, choreography, on, saga


class TripBooked(Message, frozen=True, kw_only=True):
    TOPIC = "examples.trip.booked.v1"
    trip: str
    cents: int

    @property
    def key(self) -> str:
        return self.trip


class TripReply(saga.Reply, frozen=True, kw_only=True):
    TOPIC, SAME_KEY = "examples.trip.replies", True


class TripTransition(saga.SagaTransition, frozen=True, kw_only=True):
    TOPIC = "examples.trip.transitions.v1"


class TakeSeat(saga.Command, frozen=True, kw_only=True):
    TOPIC, REPLY, SAME_KEY = "examples.seats.take", TripReply, True


class LeaveSeat(saga.Command, frozen=True, kw_only=True):
    TOPIC, REPLY, SAME_KEY = "examples.seats.leave", TripReply, True


class TakeMoney(saga.Command, frozen=True, kw_only=True):
    TOPIC, REPLY, SAME_KEY = "examples.money.take", TripReply, True
    cents: int  # the saga fills it from the message that started it


Trip = (
    saga.saga("trip", started_by=TripBooked)
    .step("seat", TakeSeat, compensate=LeaveSeat, timeout=30)
    .pivot("money", TakeMoney, timeout=30)
)
trips = saga.orchestrate(
    Trip, service=Service("trips"), table=Table("trips", saga.SagaRow), log=TripTransition
)
agency = saga.Participant(Service("agency"), Table("agency-steps", saga.Participation))


@agency.command()
def take_seat(command: TakeSeat) -> saga.Answer:
    return saga.done()


@agency.compensation()
def leave_seat(command: LeaveSeat) -> saga.Answer:
    return saga.done()


@agency.command()
def take_money(command: TakeMoney) -> saga.Answer:
    """Take up to 100.00; a refusal is an answer, not an error."""
    return saga.done() if command.cents <= 10_000 else saga.refused("card_declined")


steps = on(TakeSeat, take_seat), on(LeaveSeat, leave_seat), on(TakeMoney, take_money)
wiring = choreography(on(TripBooked, trips), on(TripReply, trips), *steps)
app = Worker(wiring)


async def main() -> None:
    async with app.client("by-hand") as client:
        await client.send(TripBooked(trip="rome", cents=9_900), message_id="booked-rome")
        await client.send(TripBooked(trip="moon", cents=990_000), message_id="booked-moon")


if __name__ == "__main__":
    asyncio.run(main())
