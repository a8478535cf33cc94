"""`orders`, by order id: the status of each order, and its history."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from streams import Row, Table
from tables.values import Order


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to the order.

    Attributes:
        type: the event's topic.
        time: when it happened, RFC 3339 in UTC.
        detail: what a person wants to know besides, such as an amount or a reason; may be empty.
    """

    type: str
    time: str
    detail: str


class TrackedOrder(Row, frozen=True, kw_only=True):
    """An order and its status. Confirmed and cancelled are final.

    Attributes:
        order: as the customer placed it.
        status: whether it is settled, and how.
        reason: why it was cancelled; empty otherwise.
        history: its events, in the order in which orders handled them.
    """

    order: Order
    status: Annotated[
        Literal["pending", "confirmed", "cancelled"],
        msgspec.Meta(title="OrderStatus", description="pending until it is settled."),
    ] = "pending"
    reason: str = ""
    history: tuple[HistoryEntry, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether its status is final."""
        return self.status != "pending"

    def noted(self, entry: HistoryEntry) -> TrackedOrder:
        """With one more entry; each type of event happens to an order once, a repeated one adds nothing."""
        if any(entry.type == earlier.type for earlier in self.history):
            return self
        return msgspec.structs.replace(self, history=(*self.history, entry))

    def confirmed(self) -> TrackedOrder:
        """Settled well."""
        return msgspec.structs.replace(self, status="confirmed")

    def cancelled(self, reason: str) -> TrackedOrder:
        """Settled badly."""
        return msgspec.structs.replace(self, status="cancelled", reason=reason)


ORDERS = Table("orders", TrackedOrder)
