"""`order-ways`, by order id: which way each order goes, and whether a client has called it off.

The handlers that may be the first to see an order agree on it here. They run in one lane, one after the
other, so the first of them to write the row has decided for all (docs/adr/0025-one-way-and-cancellation.md).
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import msgspec

from streams import Row, Rows, Table

Way = Literal["none", "placed", "submitted"]


class OrderWay(Row, frozen=True, kw_only=True):
    """The way of one order. Once it is known it never changes.

    Attributes:
        way: how it came, and so who sees to it: `placed`, the choreography; `submitted`, the saga; `none`, it
            has not come yet.
        cancelled: whether a client has called it off. No first step of it is made after that.
    """

    way: Annotated[Way, msgspec.Meta(title="Way", description="How it came; none: not yet.")] = "none"
    cancelled: bool = False

    def goes(self, way: Way) -> OrderWay:
        """It has come this way."""
        return msgspec.structs.replace(self, way=way)

    def called_off(self) -> OrderWay:
        """A client has called it off."""
        return msgspec.structs.replace(self, cancelled=True)


class FirstStep(NamedTuple):
    """Whether a first step of an order is made.

    Attributes:
        refusal: why it is not; empty: it is.
        cancelled: whether that is because the order was called off.
        rows: what changes of the order's way, by subkey.
    """

    refusal: str = ""
    cancelled: bool = False
    rows: dict[str, OrderWay] = {}  # noqa: RUF012 - never changed


#: Of a step that is not a first one, and needs no entry.
NO_ENTRY = FirstStep()


def enter(ways: Rows[OrderWay], wanted: Way) -> FirstStep:
    """A first step of an order that has come the `wanted` way; the first service records it for all."""
    way = ways("")
    if way is None:
        return FirstStep(rows={"": OrderWay(way=wanted)})
    if way.way not in ("none", wanted):
        return FirstStep(f"it goes another way: it was {way.way}")
    return FirstStep("it was called off", cancelled=True) if way.cancelled else NO_ENTRY


ORDER_WAYS = Table("order-ways", OrderWay)
