"""The handlers of orders: they watch an order through the other services' events, and settle it once."""

from __future__ import annotations

import msgspec

from agents.cancellation import CANCELLED, CancellationRefused, RequestCancellation, StopShipment
from agents.commands import CancelOrder, ConfirmOrder, OrderSagaRepair, OrderSubmitted
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
from agents.orders.model import answer, began, entry, is_placed, refused, way_of
from streams import Envelope, Message, Outcome, Rows, Service, nothing, outcome
from tables.orders import ORDERS, TrackedOrder
from tables.ways import ORDER_WAYS, OrderWay

service = Service("orders")


@service.handler(
    sends=[OrderDocumented, OrderCancelled, StopShipment, OrderSagaRepair],
    tracked=ORDERS,
    way=ORDER_WAYS.any,
)
def open(  # noqa: A001 - read as orders.open
    event: OrderPlaced | OrderSubmitted,
    tracked: TrackedOrder | None,
    way: Rows[OrderWay],
    *,
    envelope: Envelope,
) -> Outcome:
    """Begin an order; one that comes again, the same way or the other, stays what it was. Its files go to
    shipping. One that no service takes, or that was called off before it came, is settled at once.
    """
    if tracked is not None and is_placed(tracked):
        return nothing("it was placed before")
    comes, had = way_of(event), way("") or OrderWay()
    if had.way not in ("none", comes):
        return nothing(f"it goes another way: it was {had.way}")
    goes = {} if had.way == comes else {"": had.goes(comes)}
    if reason := event.order.refusal():
        cancelled = OrderCancelled(order=msgspec.structs.replace(event.order, lines=()), reason=reason)
        return outcome(
            way=goes, tracked=refused(event, cancelled, envelope.time), send=[cancelled], note=reason
        )
    files = OrderDocumented(order_id=event.key, attachments=event.attachments)
    send: list[Message] = [files] if event.attachments else []
    if had.cancelled and had.way == "none" and tracked is None:
        cancelled = OrderCancelled(order=event.order, reason=CANCELLED)
        tracked = refused(event, cancelled, envelope.time)
        return outcome(way=goes, tracked=tracked, send=[*send, cancelled], note="it was called off before")
    tracked = tracked or TrackedOrder(order=event.order)  # other events may have overtaken this one
    if had.cancelled:  # when a first step of it had been made already, and what it is was not known here
        send += answer(comes, tracked)
    return outcome(way=goes, tracked=tracked.noted(entry(event, envelope.time)), send=send)


@service.handler(sends=[StopShipment, OrderSagaRepair, CancellationRefused], tracked=ORDERS, way=ORDER_WAYS)
def call_off(command: RequestCancellation, tracked: TrackedOrder | None, way: OrderWay | None) -> Outcome:
    """Have its saga or shipping undo the order, if it is not past its pivot. If this comes before the
    order, its mark has it cancelled when it comes.
    """
    had = way or OrderWay()
    if tracked is None:
        return outcome(way=had.called_off(), note=f"order {command.order_id} has not come yet")
    if tracked.settled:
        return outcome(send=answer(had.way, tracked), note=f"already {tracked.status}")
    if had.way == "none":  # it began with a version that did not write it down
        had = had.goes(began(tracked))
    return outcome(way=had.called_off(), send=answer(had.way, tracked))


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
    """Settle the order as cancelled, and say why. One that was called off may also fail by itself: that is
    only noted.
    """
    tracked = tracked or TrackedOrder(order=event.order)
    noted = tracked.noted(entry(event, envelope.time))
    if tracked.settled:
        if tracked.status == "confirmed" or noted is tracked:
            return nothing(f"already {tracked.status}")
        return outcome(tracked=noted, note=f"already {tracked.status}")
    return outcome(
        tracked=noted.cancelled(event.reason),
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
