"""Values that messages and rows share: what an order is, and the units things are counted in.

What is not within these bounds is no message: it is a dead letter before a handler sees it. They keep all
that is summed up of them far below 2^63. An order that no service takes is a message, and is cancelled.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from streams import Personal

#: Lines of an order at most.
MAX_LINES = 10_000
#: Bytes of an order at most, as JSON: several rows and many messages have all of it.
MAX_ORDER_BYTES = 500_000
#: Pieces on one line, or in one delivery, at most.
MAX_UNITS = 10**9
#: Cents of one order at most; the payment gateway takes as many.
MAX_CENTS = 10**12

#: An amount of money in cents, never less than nothing.
Cents = Annotated[int, msgspec.Meta(ge=0, le=MAX_CENTS)]

#: A number of pieces of one SKU, at least one.
Units = Annotated[int, msgspec.Meta(ge=1, le=MAX_UNITS)]

#: The pieces of one SKU on all the lines of an order.
SumOfUnits = Annotated[int, msgspec.Meta(ge=1, le=MAX_LINES * MAX_UNITS)]

#: An order's id or a SKU: the key of messages and rows, never empty.
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]

#: A word or two without meaning for the services.
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class OrderLine(msgspec.Struct, frozen=True, kw_only=True):
    """How many pieces of a SKU the customer wants.

    Attributes:
        sku: the SKU.
        units: pieces, at least 1.
    """

    sku: Key
    units: Units


class SkuUnits(msgspec.Struct, frozen=True, kw_only=True):
    """The pieces of one SKU on all the lines of an order.

    Attributes:
        sku: the SKU.
        units: pieces, at least 1.
    """

    sku: Key
    units: SumOfUnits


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A file that comes with an order, such as a gift picture or a customs document.

    Attributes:
        name: the file's name.
        content_type: what its bytes are, a media type.
        data: its bytes.
    """

    name: str
    content_type: str
    data: bytes


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The order as the customer placed it; it never changes.

    Attributes:
        order_id: the order's id, given by its client.
        customer: the customer's id.
        lines: what is wanted; a SKU may be on several lines.
        total_cents: the price of all of it in cents; 0 when it costs nothing.
        card: the payment gateway's token for the card to charge.
        country: where it goes, ISO 3166-1 alpha-2 in capitals.
    """

    order_id: Key
    customer: Annotated[Text, Personal]
    lines: tuple[OrderLine, ...]
    total_cents: Cents
    card: Annotated[Text, Personal]
    country: Text

    def refusal(self) -> str:
        """Why no service takes it, a word for programs; empty: it is taken."""
        if not self.lines:
            return "no_lines"
        if len(self.lines) > MAX_LINES:
            return "too_many_lines"
        return "order_too_large" if len(msgspec.json.encode(self)) > MAX_ORDER_BYTES else ""

    def skus(self) -> tuple[SkuUnits, ...]:
        """Its SKUs, each once, with the pieces of all its lines."""
        units: dict[str, int] = {}
        for line in self.lines:
            units[line.sku] = units.get(line.sku, 0) + line.units
        return tuple(SkuUnits(sku=sku, units=n) for sku, n in units.items())
