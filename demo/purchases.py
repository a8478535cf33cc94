"""The orders of the demo, and what must become of each: both follow from a row of the file and nothing else.

What the file does not say (SKUs, card, country) comes from a hash of the row number. The outcome is stated
here in the words of the published events, and does not ask the services' code.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from agents.gateway.cards import ACCEPTED, DECLINED
from agents.messages import Attachment, Order, OrderLine, StockReceived

FILE = Path(__file__).parent / "data" / "cdnow_orders.csv"
ROWS = 69_659

#: 500 SKUs: 490 of which there is always enough, 5 that have one piece, and 5 that have none.
ORDINARY = tuple(f"cd-{number:03d}" for number in range(1, 491))
SHORT = tuple(f"cd-{number:03d}" for number in range(491, 496))
SOLD_OUT = tuple(f"cd-{number:03d}" for number in range(496, 501))

MOST_LINES = 3
SPARE = 10  # pieces of an ordinary SKU that no order needs, so that the shelves do not end empty
SHORT_LINE = 2  # pieces ordered of a SKU that has one

#: Bytes of an attachment. Of every thousand orders these have one of just so many, in a short run too.
SMALLEST, LARGEST = 10, 5_000_000
_EXTREMES = {40: SMALLEST, 80: LARGEST}
_FILES = (("gift.png", "image/png"), ("customs.pdf", "application/pdf"))

_SUPPORTED = ("US", "US", "US", "CA", "GB", "DE", "JP")
_NOWHERE = "AQ"


class ExpectedOutcome(StrEnum):
    """The due end of an order: confirmed, or cancelled for one of these reasons."""

    CONFIRMED = "confirmed"
    DECLINED = "card_declined"
    OUT_OF_STOCK = "out_of_stock"
    NOWHERE = "unsupported_destination"


class Purchase(NamedTuple):
    """A row of the file; `row` counts from 1. In a further `lap` the same is ordered under another id."""

    row: int
    customer: str
    units: int
    cents: int
    lap: int = 0

    @property
    def order_id(self) -> str:
        """The row number, since some rows equal another."""
        return f"cdnow-{self.row:05d}-{self.lap}" if self.lap else f"cdnow-{self.row:05d}"


def purchases(most: int = ROWS) -> list[Purchase]:
    """The first rows of the file."""
    with FILE.open(newline="") as file:
        rows = islice(csv.DictReader(file), most)
        return [
            Purchase(number, row["customer"], int(row["units"]), int(row["amount_cents"]))
            for number, row in enumerate(rows, start=1)
        ]


def repeated(laps: int) -> Iterator[Purchase]:
    """All rows of the file, as many times as there are laps: `receipts(laps)` is stock for them."""
    rows = purchases()
    return (purchase._replace(lap=lap) for lap in range(laps) for purchase in rows)


def outcome(purchase: Purchase) -> ExpectedOutcome:
    """3 % declined, 2 % out of stock, 1 % to nowhere; never two at once, whatever the order of steps."""
    match draw(purchase.row, "outcome", 100):
        case 0 | 1 | 2:
            # What costs nothing is not charged, so no card can be declined.
            return ExpectedOutcome.DECLINED if purchase.cents else ExpectedOutcome.CONFIRMED
        case 3 | 4:
            return ExpectedOutcome.OUT_OF_STOCK
        case 5:
            return ExpectedOutcome.NOWHERE
        case _:
            return ExpectedOutcome.CONFIRMED


def orchestrated(purchase: Purchase) -> bool:
    """Whether a saga sees to the order, every second one; the choreography sees to the others."""
    return purchase.row % 2 == 0


def order(purchase: Purchase) -> Order:
    """Return the customer's request."""
    wanted = outcome(purchase)
    row = purchase.row
    return Order(
        order_id=purchase.order_id,
        customer=purchase.customer,
        lines=tuple(_lines(purchase, scarce=wanted is ExpectedOutcome.OUT_OF_STOCK)),
        total_cents=purchase.cents,
        card=DECLINED if wanted is ExpectedOutcome.DECLINED else ACCEPTED,
        country=_NOWHERE
        if wanted is ExpectedOutcome.NOWHERE
        else _SUPPORTED[draw(row, "country", len(_SUPPORTED))],
    )


def attachments(purchase: Purchase, share: float, largest: int = LARGEST) -> tuple[Attachment, ...]:
    """The files that come with so large a share of the orders, of `largest` bytes at most."""
    row = purchase.row
    if not (size := attached_bytes(purchase, share, largest)):
        return ()
    name, content_type = _FILES[draw(row, "file", len(_FILES))]
    # Chance by the row number: the same bytes in each process.
    return (Attachment(name=name, content_type=content_type, data=Random(row).randbytes(size)),)


def attached_bytes(purchase: Purchase, share: float, largest: int = LARGEST) -> int:
    """The size of an order's file, when so large a share of the orders has any: 10 B to `largest`, small ones
    more often, and some of both ends however small the share. 0: it has none.
    """
    row = purchase.row
    extreme = _EXTREMES.get(row % 1000)
    if not share or (extreme is None and draw(row, "attachments", 1_000_000) >= share * 1_000_000):
        return 0
    if extreme is not None:
        return min(extreme, largest)
    return int(SMALLEST * (largest / SMALLEST) ** (draw(row, "size", 1001) / 1000))


def units_by_sku(orders: Iterable[Order]) -> Counter[str]:
    """Pieces of each SKU in these orders."""
    units: Counter[str] = Counter()
    for each in orders:
        for line in each.lines:
            units[line.sku] += line.units
    return units


@cache
def receipts(laps: int = 1) -> Sequence[StockReceived]:
    """The stock that comes in before the first order: enough for the whole file, however much of it is
    replayed, so that a run can be followed by a longer one; and for all of its `laps`.
    """
    demand = units_by_sku(order(purchase) for purchase in purchases())
    enough = [StockReceived(sku=sku, units=laps * demand[sku] + SPARE) for sku in ORDINARY]
    return (*enough, *(StockReceived(sku=sku, units=SHORT_LINE - 1) for sku in SHORT))


def _lines(purchase: Purchase, *, scarce: bool) -> Iterator[OrderLine]:
    """A scarce line is beside ordinary ones where there are units for both: these must be given back."""
    units = purchase.units
    if scarce:
        some = SHORT if units >= SHORT_LINE else SOLD_OUT
        short = min(units, SHORT_LINE)
        yield OrderLine(sku=some[draw(purchase.row, "scarce", len(some))], units=short)
        units -= short
    if not units:
        return
    lines = min(units, MOST_LINES)
    first = draw(purchase.row, "sku", len(ORDINARY))
    step = 1 + draw(purchase.row, "step", len(ORDINARY) // MOST_LINES)  # no two lines meet
    for number in range(lines):
        sku = ORDINARY[(first + number * step) % len(ORDINARY)]
        yield OrderLine(sku=sku, units=units // lines + (number < units % lines))


def draw(row: int, purpose: str, sides: int) -> int:
    """A number below `sides`, always the same for a row and purpose."""
    digest = blake2b(f"{row}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % sides
