"""What inventory says: its commands for the lines of an order, the stock's answer to them, and what has come
of an order's reservation, as an event or to whoever commanded it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from agents.messages import (
    LineCommand,
    LineRefused,
    LineReserved,
    Order,
    OrderEvent,
    ReservationSettled,
    ReserveLine,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from tables.reservations import Reservation, ReservationLine
from tables.stock import Hold

OUT_OF_STOCK = "out_of_stock"
RELEASED = "released"

Command = TypeVar("Command", bound=LineCommand)


def commands(kind: type[Command], order: Order, lines: Iterable[ReservationLine]) -> list[Command]:
    """One command for each of the order's lines."""
    return [kind(order_id=order.order_id, sku=line.sku, units=line.units) for line in lines]


def answer(command: ReserveLine, hold: Hold) -> LineReserved | LineRefused:
    """What the order is told of its hold, the first time and every time it asks."""
    match hold.status:
        case "reserved" | "shipped":
            return LineReserved.to(command)
        case "refused":
            return LineRefused.to(command, reason=OUT_OF_STOCK)
        case "released":
            return LineRefused.to(command, reason=RELEASED)


def reserved(reservation: Reservation) -> OrderEvent:
    """All of the order's stock is set aside."""
    if reservation.commanded:
        return ReservationSettled(order=reservation.order, status="reserved")
    return StockReserved(order=reservation.order)


def failed(reservation: Reservation) -> OrderEvent:
    """Something of it is out of stock."""
    if reservation.commanded:
        return ReservationSettled(order=reservation.order, status="refused", reason=OUT_OF_STOCK)
    return StockReservationFailed(order=reservation.order, reason=OUT_OF_STOCK)


def released(reservation: Reservation) -> OrderEvent:
    """All that was set aside is free again."""
    if reservation.commanded:
        return ReservationSettled(order=reservation.order, status="released")
    return StockReleased(order=reservation.order)
