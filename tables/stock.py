"""`stock`, by SKU: how much there is. `stock-reservations`, by SKU and order: what each order has of it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from streams import PermanentError, Row, Table
from tables.values import SumOfUnits

#: What a count can be: a row keeps it in 64 bits.
MAX_PIECES = 2**63 - 1

HoldStatus = Literal["reserved", "refused", "released", "shipped"]


class StockContradiction(PermanentError):
    """A command contradicts what was done with the stock before."""


class StockLevel(Row, frozen=True, kw_only=True):
    """The pieces of one SKU. Always received = on_hand + reserved + shipped, and none is below 0.

    Attributes:
        received: all pieces that ever came in.
        on_hand: pieces on the shelf and free.
        reserved: pieces on the shelf, set aside for orders.
        shipped: pieces gone to customers.
    """

    received: int = 0
    on_hand: int = 0
    reserved: int = 0
    shipped: int = 0

    def receive(self, units: int) -> StockLevel:
        """New pieces come in."""
        return self._changed(received=units, on_hand=units)

    def reserve(self, units: int) -> StockLevel:
        """Free pieces are set aside."""
        return self._changed(on_hand=-units, reserved=units)

    def release(self, units: int) -> StockLevel:
        """Pieces that were set aside are free again."""
        return self._changed(on_hand=units, reserved=-units)

    def ship(self, units: int) -> StockLevel:
        """Pieces that were set aside leave."""
        return self._changed(reserved=-units, shipped=units)

    def _changed(self, **changes: int) -> StockLevel:
        counts = {name: getattr(self, name) + change for name, change in changes.items()}
        if min(counts.values()) < 0:
            raise StockContradiction(f"{changes} would leave less than nothing of {self}")
        if max(counts.values()) > MAX_PIECES:
            raise StockContradiction(f"{changes} would be more than can be counted of {self}")
        return msgspec.structs.replace(self, **counts)


class Hold(Row, frozen=True, kw_only=True):
    """What one order has of a SKU. One that is refused or released stays as a mark: it is not reserved later.

    Attributes:
        units: how many pieces it is about, at least 1.
        status: the hold's status.
    """

    units: SumOfUnits
    status: Annotated[
        HoldStatus,
        msgspec.Meta(title="HoldStatus", description="Set aside, refused, given back, or gone."),
    ]

    def now(self, status: HoldStatus) -> Hold:
        """The same pieces, in another state."""
        return Hold(units=self.units, status=status)


STOCK = Table("stock", StockLevel)
STOCK_RESERVATIONS = Table("stock-reservations", Hold)
