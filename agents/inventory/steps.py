"""Inventory's part in the order saga: the same reservations, asked for by command and answered by reply.

The answer comes later: the stock answers by SKU, and what is gathered of it is the reply.
"""

from __future__ import annotations

from agents.commands import OrderSagaReply, ReleaseStock, ReserveStock
from agents.inventory.model import commands
from agents.messages import ReleaseLine, ReservationSettled, ReserveLine
from streams.handlers import Service
from streams.outcome import Outcome, nothing, outcome
from streams.saga.participant import Answer, Participant, done, later
from streams.saga.participation import Participation
from tables.reservations import RESERVATIONS, Reservation
from tables.sagas import INVENTORY_STEPS

service = Service("inventory-steps")
participant = Participant(service, INVENTORY_STEPS)
STEP = participant.row_of("order", "reserve_inventory")


@participant.command(sends=[ReserveLine], reservation=RESERVATIONS)
def reserve(command: ReserveStock, reservation: Reservation | None) -> Answer:
    """Ask for the order's stock, SKU by SKU."""
    reservation = Reservation.of(command.order, commanded=True)
    asks = commands(ReserveLine, command.order, reservation.lines)
    return later(reservation=reservation, send=asks) if asks else done(reservation=reservation)


@participant.compensation(sends=[ReleaseLine], reservation=RESERVATIONS)
def release(command: ReleaseStock, reservation: Reservation | None) -> Answer:
    """Give back what the order has, and what it has asked for."""
    reservation = reservation or Reservation.of(command.order, commanded=True)
    lines = reservation.lines_in("asked", "reserved")
    reservation = reservation.moved(lines, "releasing")
    if not lines:
        return done(reservation=reservation)
    return later(reservation=reservation, send=commands(ReleaseLine, command.order, lines))


@service.handler(sends=[OrderSagaReply], participation=STEP)
def answer(event: ReservationSettled, participation: Participation | None) -> Outcome:
    """All of the stock has answered: so has inventory."""
    waits_for = "undoing" if event.status == "released" else "working"
    if participation is None or participation.status != waits_for:
        return nothing("nobody waits for it any more")
    match event.status:
        case "reserved":
            participation = participation.answered("done")
        case "refused":
            participation = participation.answered("refused", event.reason)
        case "released":
            participation = participation.answered("undone")
    return outcome(participation=participation, send=[participation.reply(OrderSagaReply)])
