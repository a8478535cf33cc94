"""What inventory says: its commands for the lines of an order, and the stock's answer to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from agents.messages import LineCommand, LineRefused, LineReserved, Order, ReserveLine
from tables.reservations import ReservationLine
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
