"""`reservations`, by order id: what became of each SKU of an order, gathered from the stock's answers."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from streams.message import Row
from streams.table import Table
from tables.values import Key, Order, Units

LineStatus = Literal["asked", "reserved", "refused", "releasing", "released", "shipped"]


class ReservationLine(msgspec.Struct, frozen=True, kw_only=True):
    """One SKU of an order.

    Attributes:
        sku: the SKU; an order's reservation has it once.
        units: the pieces of all the order's lines of it.
        status: how it stands; `asked` and `releasing` wait for the stock's answer.
    """

    sku: Key
    units: Units
    status: LineStatus = "asked"


class Reservation(Row, frozen=True, kw_only=True):
    """The stock of one order, SKU by SKU.

    Attributes:
        order: the order.
        lines: its SKUs, each once.
        commanded: a command has asked for it, so that it is answered by a reply; else events tell of it.
    """

    order: Order
    lines: tuple[ReservationLine, ...]
    commanded: bool = False

    @classmethod
    def of(cls, order: Order, *, commanded: bool = False) -> Reservation:
        """All of the order's SKUs, asked for."""
        units: Counter[str] = Counter()
        for line in order.lines:
            units[line.sku] += line.units
        lines = tuple(ReservationLine(sku=sku, units=n) for sku, n in units.items())
        return cls(order=order, lines=lines, commanded=commanded)

    def lines_in(self, *statuses: LineStatus) -> list[ReservationLine]:
        """The lines that are in one of these states."""
        return [line for line in self.lines if line.status in statuses]

    def moved(self, lines: list[ReservationLine], status: LineStatus) -> Reservation:
        """With these of its lines in another state."""
        return msgspec.structs.replace(
            self,
            lines=tuple(
                msgspec.structs.replace(line, status=status) if line in lines else line for line in self.lines
            ),
        )

    def answered(self, sku: str, status: LineStatus, *, waiting: LineStatus) -> Reservation | None:
        """With the answer for a SKU; None when it was not waiting for one."""
        lines = [line for line in self.lines_in(waiting) if line.sku == sku]
        return self.moved(lines, status) if lines else None


RESERVATIONS = Table("reservations", Reservation)
