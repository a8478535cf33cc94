"""Inventory's part in the order saga: the same reservations, by command and reply.

The answer comes later: the stock answers by SKU, and what is gathered of it is the reply.
"""

from __future__ import annotations

from agents.commands import OrderSagaReply, ReleaseStock, ReserveStock
from agents.inventory.model import OUT_OF_STOCK, commands, given_back
from agents.messages import HandleLines, ReleaseLine, ReservationSettled, ReserveLine
from streams import Outcome, Rows, Service, nothing, outcome
from streams.saga import Answer, Participant, Participation, done, later, refused
from tables.reservations import (
    RESERVATION_LINES,
    RESERVATION_TALLIES,
    RESERVATIONS,
    Reservation,
    ReservationLine,
    Tally,
)
from tables.sagas import INVENTORY_STEPS

#: Why a step is refused for an order whose stock was requested another way.
ASKED_BEFORE = "asked_before"

service = Service("inventory-steps")
participant = Participant(service, INVENTORY_STEPS)
STEP = participant.row_of("order", "reserve_inventory")


@participant.command(
    sends=[ReserveLine, HandleLines], tally=RESERVATION_TALLIES, reservation=RESERVATIONS.any
)
def reserve(command: ReserveStock, tally: Tally | None, reservation: Rows[Reservation]) -> Answer:
    """Ask for the order's stock, SKU by SKU."""
    del reservation  # it is written only
    if tally is not None:
        return refused(OUT_OF_STOCK if tally.refused else ASKED_BEFORE)
    return later(
        tally=Tally.of(len(command.order.skus())),
        reservation={"": Reservation(order=command.order, commanded=True)},
        send=commands("reserve", command.order),
    )


@participant.compensation(
    sends=[ReleaseLine, HandleLines],
    tally=RESERVATION_TALLIES,
    had=RESERVATION_LINES.any,
    reservation=RESERVATIONS.any,
)
def release(
    command: ReleaseStock,
    tally: Tally | None,
    had: Rows[ReservationLine],
    reservation: Rows[Reservation],
) -> Answer:
    """Release the order's stock, requested stock included."""
    if tally is not None and not tally.may_give_back:
        return done()
    tally, releases = given_back(command.order, tally, had)
    whole = reservation("") or Reservation(order=command.order, commanded=True)
    return later(tally=tally, reservation={"": whole}, send=releases)


@service.handler(sends=[OrderSagaReply], participation=STEP)
def answer(event: ReservationSettled, participation: Participation | None) -> Outcome:
    """All of the stock has answered: so has inventory."""
    waits_for = "undoing" if event.status == "released" else "working"
    if participation is None or participation.status != waits_for:
        return nothing("no command waits for it any more")
    match event.status:
        case "reserved":
            participation = participation.answered("done")
        case "refused":
            participation = participation.answered("refused", event.reason)
        case "released":
            participation = participation.answered("undone")
    return outcome(participation=participation, send=[participation.reply(OrderSagaReply)])
