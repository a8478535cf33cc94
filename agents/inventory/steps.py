"""Inventory's part in the order saga: the same reservations, asked for by command and answered by reply.

The answer comes later: the stock answers by SKU, and what the choreographies gather of it is the reply.
"""

from __future__ import annotations

from agents.commands import OrderSagaReply, ReleaseStock, ReserveStock
from agents.inventory.model import commands
from agents.messages import ReleaseLine, ReserveLine, StockReleased, StockReservationFailed, StockReserved
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
    reservation = Reservation.of(command.order)
    asks = commands(ReserveLine, command.order, reservation.lines)
    return later(reservation=reservation, send=asks) if asks else done(reservation=reservation)


@service.handler(sends=[OrderSagaReply], participation=STEP)
def reserved(event: StockReserved | StockReservationFailed, participation: Participation | None) -> Outcome:
    """All of the stock has answered."""
    if participation is None or participation.status != "working":
        return nothing("nobody waits for it any more")
    if isinstance(event, StockReserved):
        participation = participation.answered("done")
    else:
        participation = participation.answered("refused", event.reason)
    return outcome(participation=participation, send=[participation.reply(OrderSagaReply)])


@participant.compensation(sends=[ReleaseLine], reservation=RESERVATIONS)
def release(command: ReleaseStock, reservation: Reservation | None) -> Answer:
    """Give back what the order has, and what it has asked for."""
    reservation = reservation or Reservation.of(command.order)
    lines = reservation.lines_in("asked", "reserved")
    reservation = reservation.moved(lines, "releasing")
    if not lines:
        return done(reservation=reservation)
    return later(reservation=reservation, send=commands(ReleaseLine, command.order, lines))


@service.handler(sends=[OrderSagaReply], participation=STEP)
def released(event: StockReleased, participation: Participation | None) -> Outcome:
    """All that was set aside is free again."""
    if participation is None or participation.status != "undoing":
        return nothing(f"nobody waits for {event.key} to be released")
    participation = participation.answered("undone")
    return outcome(participation=participation, send=[participation.reply(OrderSagaReply)])
