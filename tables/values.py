"""Values that messages and rows share: what an order is, and the units things are counted in."""

from __future__ import annotations

from typing import Annotated

import msgspec

#: An amount of money in cents, never less than nothing.
Cents = Annotated[int, msgspec.Meta(ge=0)]

#: A number of pieces of one SKU, at least one.
Units = Annotated[int, msgspec.Meta(ge=1)]

#: An order's id or a SKU: the key of messages and rows, never empty.
Key = Annotated[str, msgspec.Meta(min_length=1)]


class OrderLine(msgspec.Struct, frozen=True, kw_only=True):
    """How many pieces of a SKU the customer wants."""

    sku: Key
    units: Units


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
    """What the customer asked for; it never changes.

    Attributes:
        order_id: the order's id, given by whoever placed it.
        customer: the customer's id.
        lines: what is wanted; a SKU may be on several lines.
        total_cents: the price of all of it; an order may cost nothing.
        card: the payment gateway's token for the card to charge.
        country: where it goes, ISO 3166-1 alpha-2 in capitals.
    """

    order_id: Key
    customer: str
    lines: tuple[OrderLine, ...]
    total_cents: Cents
    card: str
    country: str
