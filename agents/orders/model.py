"""How orders reads an event: its entry in the history, the way of its order, and who stops it."""

from __future__ import annotations

from agents.cancellation import CancellationRefused, StopShipment
from agents.commands import OrderSagaRepair, OrderSubmitted
from agents.message_bases import FailedOrderEvent, OrderEvent
from agents.messages import (
    OrderCancelled,
    OrderPlaced,
    PaymentCaptured,
    PaymentRefunded,
)
from streams import Message
from streams.saga import saga_id
from tables.orders import HistoryEntry, TrackedOrder
from tables.ways import Way


def entry(event: OrderEvent, time: str) -> HistoryEntry:
    """The entry for an event that happened at `time`, RFC 3339."""
    return HistoryEntry(type=event.TOPIC, time=time, detail=_detail(event))


def is_placed(tracked: TrackedOrder) -> bool:
    """Whether what begins an order is in its history: what other services say of it may come first."""
    return any(each.type in (OrderPlaced.TOPIC, OrderSubmitted.TOPIC) for each in tracked.history)


def refused(event: OrderEvent, cancelled: OrderCancelled, time: str) -> TrackedOrder:
    """The row of an order that no service takes: no other event will come of it."""
    tracked = TrackedOrder(order=cancelled.order).noted(entry(event, time)).noted(entry(cancelled, time))
    return tracked.cancelled(cancelled.reason)


def way_of(event: OrderEvent) -> Way:
    """Return the way of an order that begins with this event."""
    return "submitted" if isinstance(event, OrderSubmitted) else "placed"


def began(tracked: TrackedOrder) -> Way:
    """Return the way of an order, by its history."""
    submitted = any(each.type == OrderSubmitted.TOPIC for each in tracked.history)
    return "submitted" if submitted else "placed"


def answer(way: Way, tracked: TrackedOrder) -> list[Message]:
    """The messages of cancelling an order that goes this way. If it is not settled, its saga or shipping
    gets the request: they know whether it is past its pivot.
    """
    order = tracked.order
    if tracked.status == "cancelled":
        return []
    if tracked.status == "confirmed":
        return [CancellationRefused(order=order)]
    if way == "placed":
        return [StopShipment(order=order)]
    own = saga_id("order", order.order_id)
    why = "the order was called off"
    return [OrderSagaRepair(saga_id=own, operation="cancel", step="", who="client", why=why)]


def _detail(event: OrderEvent) -> str:
    match event:
        case PaymentCaptured() | PaymentRefunded():
            return f"{event.cents} cents"
        case FailedOrderEvent():
            return event.reason
        case _:
            return ""
