"""`reservations` and `reservation-tallies` by order id, `reservation-lines` by order id and SKU: what became
of the stock of each order, gathered from the stock's answers.

An answer changes one line and the tally, however many lines there are; the order is written once.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from streams import Row, Table
from tables.values import Order

LineStatus = Literal["reserved", "refused", "released"]
TallyStatus = Literal["asked", "reserved", "refused", "releasing", "released", "shipped"]


class Reservation(Row, frozen=True, kw_only=True):
    """Whose stock it is: the order of a reservation.

    Attributes:
        order: the order it is about.
        commanded: whether a command began it, so that it is answered by a reply; else by events.
    """

    order: Order
    commanded: bool = False


class ReservationLine(Row, frozen=True, kw_only=True):
    """What the stock has answered last for one SKU of an order; there is none before it has.

    Attributes:
        status: the line's status.
    """

    status: Annotated[
        LineStatus, msgspec.Meta(title="LineStatus", description="What the stock has answered.")
    ]


class Tally(Row, frozen=True, kw_only=True):
    """How far an order's stock has come, counted in SKUs.

    Attributes:
        status: the tally's status.
        skus: how many SKUs the order has.
        awaited: answers of the stock that are still to come.
        refused: SKUs that were refused.
    """

    status: Annotated[
        TallyStatus,
        msgspec.Meta(
            title="TallyStatus",
            description="What it is about now. refused: something is short, and the rest is being given"
            " back.",
        ),
    ]
    skus: int
    awaited: int
    refused: int = 0

    @classmethod
    def of(cls, skus: int) -> Tally:
        """All of them requested."""
        return cls(status="asked", skus=skus, awaited=skus)

    @property
    def may_give_back(self) -> bool:
        """Whether the order has some of its stock, or may yet get it."""
        return self.status in ("asked", "reserved")

    def answered(self, status: LineStatus) -> Tally:
        """With the answer for one SKU that was awaited."""
        refused = self.refused + (status == "refused")
        return msgspec.structs.replace(self, awaited=self.awaited - 1, refused=refused)

    def giving_back(self, status: Literal["refused", "releasing"]) -> Tally:
        """All but what was refused is to be given back."""
        return msgspec.structs.replace(self, status=status, awaited=self.skus - self.refused)

    def now(self, status: TallyStatus) -> Tally:
        """In another state."""
        return msgspec.structs.replace(self, status=status)


RESERVATIONS = Table("reservations", Reservation)
RESERVATION_TALLIES = Table("reservation-tallies", Tally)
RESERVATION_LINES = Table("reservation-lines", ReservationLine)
