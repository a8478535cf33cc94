"""What orders does: it watches an order through the other services' events, and settles it once."""

from __future__ import annotations

import msgspec

from agents.commands import CancelOrder, ConfirmOrder, OrderSubmitted
from agents.messages import (
    OrderCancelled,
    OrderConfirmed,
    OrderDocumented,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    ShipmentFailed,
    ShipmentScheduled,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from agents.orders.model import entry, is_placed, refused
from streams import Envelope, Outcome, Service, nothing, outcome
from tables.orders import ORDERS, TrackedOrder

service = Service("orders")


@service.handler(sends=[OrderDocumented, OrderCancelled], tracked=ORDERS)
def open(  # noqa: A001 - read as orders.open
    event: OrderPlaced | OrderSubmitted, tracked: TrackedOrder | None, *, envelope: Envelope
) -> Outcome:
    """Begin an order; placed again, it stays what it was. Its files go to shipping. One that no service takes
    is settled at once.
    """
    if tracked is not None and is_placed(tracked):
        return nothing("it was placed before")
    if reason := event.order.refusal():
        cancelled = OrderCancelled(order=msgspec.structs.replace(event.order, lines=()), reason=reason)
        return outcome(tracked=refused(event, cancelled, envelope.time), send=[cancelled], note=reason)
    files = OrderDocumented(order_id=event.key, attachments=event.attachments)
    tracked = tracked or TrackedOrder(order=event.order)  # other events may have overtaken this one
    return outcome(
        tracked=tracked.noted(entry(event, envelope.time)),
        send=[files] if event.attachments else [],
    )


@service.handler(tracked=ORDERS)
def note(
    event: StockReserved | PaymentCaptured | StockReleased | PaymentRefunded,
    tracked: TrackedOrder | None,
    *,
    envelope: Envelope,
) -> Outcome:
    """Keep in the order's history what happened to it."""
    tracked = tracked or TrackedOrder(order=event.order)
    return outcome(tracked=tracked.noted(entry(event, envelope.time)))


@service.handler(sends=[OrderConfirmed], tracked=ORDERS)
def confirm(event: ShipmentScheduled, tracked: TrackedOrder | None, *, envelope: Envelope) -> Outcome:
    """Settle the order as confirmed."""
    tracked = tracked or TrackedOrder(order=event.order)
    if tracked.settled:
        return nothing(f"already {tracked.status}")
    return outcome(
        tracked=tracked.noted(entry(event, envelope.time)).confirmed(),
        send=[OrderConfirmed(order=event.order)],
    )


@service.handler(sends=[OrderCancelled], tracked=ORDERS)
def cancel(
    event: StockReservationFailed | PaymentFailed | ShipmentFailed,
    tracked: TrackedOrder | None,
    *,
    envelope: Envelope,
) -> Outcome:
    """Settle the order as cancelled, and say why."""
    tracked = tracked or TrackedOrder(order=event.order)
    if tracked.settled:
        return nothing(f"already {tracked.status}")
    return outcome(
        tracked=tracked.noted(entry(event, envelope.time)).cancelled(event.reason),
        send=[OrderCancelled(order=event.order, reason=event.reason)],
    )


@service.handler(sends=[OrderConfirmed, OrderCancelled], tracked=ORDERS)
def settle(
    command: ConfirmOrder | CancelOrder, tracked: TrackedOrder | None, *, envelope: Envelope
) -> Outcome:
    """Settle an order as its saga has ended."""
    tracked = tracked or TrackedOrder(order=command.order)
    if tracked.settled:
        return nothing(f"already {tracked.status}")
    tracked = tracked.noted(entry(command, envelope.time))
    if isinstance(command, CancelOrder):
        return outcome(
            tracked=tracked.cancelled(command.reason),
            send=[OrderCancelled(order=command.order, reason=command.reason)],
        )
    return outcome(tracked=tracked.confirmed(), send=[OrderConfirmed(order=command.order)])
