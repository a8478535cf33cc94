"""The JSON of the orders API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tables.values import MAX_CENTS, MAX_LINES, MAX_UNITS

#: PostgreSQL keeps no character of 0.
_NO_NUL = "^[^\\x00]*$"
#: The end of a text, for Python and for JSON Schema: in Python `$` is there before a last line break, too.
END = "(?!\\n)$"
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

#: Of ids that clients choose: they are part of a URL.
OrderId = Annotated[str, Meta(min_length=1, max_length=200, pattern=f"^[A-Za-z0-9._~-]+{END}")]
#: With its time zone.
Time = Annotated[datetime, Meta(tz=True)]
Word = Annotated[str, Meta(min_length=1, max_length=200, pattern=_NO_NUL)]
Text = Annotated[str, Meta(max_length=1000, pattern=_NO_NUL)]

Status: TypeAlias = Literal["pending", "confirmed", "cancelled"]
Cancellation: TypeAlias = Literal["none", "requested", "refused"]


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many pieces of a SKU the customer wants."""

    sku: Word
    units: Annotated[int, Meta(ge=1, le=MAX_UNITS)]


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that comes with the order; `data` in base64."""

    name: Text
    content_type: Text
    data: Annotated[bytes, Meta(extra_json_schema={"pattern": _BASE64})]


class PlaceOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The order that a customer places. Without an `order_id` the order gets one."""

    customer: Text
    lines: Annotated[tuple[Line, ...], Meta(min_length=1, max_length=MAX_LINES)]
    total_cents: Annotated[int, Meta(ge=0, le=MAX_CENTS)]
    card: Text
    country: Text
    order_id: OrderId | None = None
    attachments: tuple[File, ...] = ()


class OrderSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An order in a list, and its status. `reason` is why it was cancelled."""

    order_id: str
    status: Status
    reason: str
    cancellation: Cancellation
    customer: str
    country: str
    total_cents: int
    way: Literal["placed", "submitted", "unknown"]
    created_at: Time
    updated_at: Time


class OrderView(OrderSummary, frozen=True, kw_only=True):
    """An order with its lines."""

    lines: tuple[Line, ...]


class OrderPage(msgspec.Struct, frozen=True, kw_only=True):
    """Orders, newest first. `after` asks for the next page; null: this is the last one."""

    orders: list[OrderSummary]
    after: str | None
