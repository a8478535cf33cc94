"""The rows of a small run in which all went well, by the tables' own classes, order by order."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from demo.purchases import SHORT, SOLD_OUT, ExpectedOutcome, Purchase, order, outcome
from schemas import latest
from streams.model.codecs import AvroCodec, Schemas, encode_row
from streams.model.row_keys import row_key
from streams.model.table import Table
from tables.orders import ORDERS, HistoryEntry, TrackedOrder
from tables.payments import PAYMENTS, Payment
from tables.reservations import (
    RESERVATION_LINES,
    RESERVATION_TALLIES,
    RESERVATIONS,
    Reservation,
    ReservationLine,
    Tally,
)
from tables.shipments import SHIPMENTS, Shipment
from tables.stock import STOCK_RESERVATIONS, Hold
from tables.ways import ORDER_WAYS, OrderWay

SCARCE = {*SHORT, *SOLD_OUT}

#: A row: its table, the key whose partition it lies in, the key of the row and its value.
Rowed = tuple[str, str, bytes, bytes]


@cache
def codec(table: Table[Any]) -> AvroCodec[Any]:
    return AvroCodec(table.row, latest(table.name), Schemas())


def rowed(table: Table[Any], row: Any, key: str, subkey: str = "") -> Rowed:
    return table.name, key, row_key(key.encode(), subkey.encode()), encode_row(codec(table), row)


def charge_of(purchase: Purchase) -> str:
    """The gateway's name for the order's charge; empty: there was no request."""
    charged = outcome(purchase) is not ExpectedOutcome.OUT_OF_STOCK and purchase.cents
    return f"c-{purchase.order_id}" if charged else ""


@cache
def rows_of(
    purchase: Purchase, *, commanded: bool, late: str = "", charged: bool = True
) -> tuple[Rowed, ...]:
    """All rows of one order; `late` is why it was cancelled if a step of it was late, `charged` whether that
    was after the charge.
    """
    return tuple(_rows_of(purchase, commanded=commanded, late=late, charged=charged))


def _rows_of(purchase: Purchase, *, commanded: bool, late: str, charged: bool) -> Iterator[Rowed]:
    placed, wanted, name = order(purchase), outcome(purchase), purchase.order_id
    confirmed = wanted is ExpectedOutcome.CONFIRMED and not late
    happened = HistoryEntry(type="any", time="2026-01-01T00:00:00Z", detail="")
    tracked = TrackedOrder(order=placed, history=(happened,))
    reason = late or ("" if confirmed else wanted.value)
    yield rowed(ORDERS, tracked.confirmed() if confirmed else tracked.cancelled(reason), name)
    yield rowed(ORDER_WAYS, OrderWay(way="submitted" if commanded else "placed"), name)
    yield rowed(RESERVATIONS, Reservation(order=placed, commanded=commanded), name)
    if (payment := _payment(purchase, wanted, late=bool(late), charged=charged)) is not None:
        yield rowed(PAYMENTS, payment, name)
    if confirmed:
        yield rowed(SHIPMENTS, Shipment(status="scheduled", country=placed.country), name)
    elif wanted is ExpectedOutcome.NOWHERE and not late:
        yield rowed(SHIPMENTS, Shipment(status="refused", country=placed.country, reason=wanted), name)
    skus = placed.skus()
    short = {each.sku for each in skus if each.sku in SCARCE}
    status = "shipped" if confirmed else "refused" if len(short) == len(skus) else "released"
    yield rowed(
        RESERVATION_TALLIES, Tally(status=status, skus=len(skus), awaited=0, refused=len(short)), name
    )
    for sku, units in ((each.sku, each.units) for each in skus):
        line = "refused" if sku in short else "reserved" if confirmed else "released"
        hold = "refused" if sku in short else "shipped" if confirmed else "released"
        yield rowed(RESERVATION_LINES, ReservationLine(status=line), name, sku)
        yield rowed(STOCK_RESERVATIONS, Hold(units=units, status=hold), sku, name)


def _payment(purchase: Purchase, wanted: ExpectedOutcome, *, late: bool, charged: bool) -> Payment | None:
    if wanted is ExpectedOutcome.OUT_OF_STOCK or (late and not charged):
        return None
    charge = charge_of(purchase)
    if wanted is ExpectedOutcome.DECLINED:
        return Payment(status="failed", charge_id=charge, reason=wanted)
    back = wanted is ExpectedOutcome.NOWHERE or late
    return Payment(status="refunded" if back else "captured", cents=purchase.cents, charge_id=charge)
