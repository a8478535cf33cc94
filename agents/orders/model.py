"""What an order's history says of an event."""

from __future__ import annotations

from agents.commands import OrderSubmitted
from agents.message_bases import FailedOrderEvent, OrderEvent
from agents.messages import (
    OrderCancelled,
    OrderPlaced,
    PaymentCaptured,
    PaymentRefunded,
)
from tables.orders import HistoryEntry, TrackedOrder


def entry(event: OrderEvent, time: str) -> HistoryEntry:
    """The entry for an event that happened at `time`, RFC 3339."""
    return HistoryEntry(type=event.TOPIC, time=time, detail=_detail(event))


def is_placed(tracked: TrackedOrder) -> bool:
    """Whether what begins an order is in its history: what other services say of it may come first."""
    return any(each.type in (OrderPlaced.TOPIC, OrderSubmitted.TOPIC) for each in tracked.history)


def refused(event: OrderEvent, cancelled: OrderCancelled, time: str) -> TrackedOrder:
    """The row of an order that no service takes: nobody else will tell orders of it."""
    tracked = TrackedOrder(order=cancelled.order).noted(entry(event, time)).noted(entry(cancelled, time))
    return tracked.cancelled(cancelled.reason)


def _detail(event: OrderEvent) -> str:
    match event:
        case PaymentCaptured() | PaymentRefunded():
            return f"{event.cents} cents"
        case FailedOrderEvent():
            return event.reason
        case _:
            return ""
