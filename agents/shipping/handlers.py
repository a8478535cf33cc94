"""The handlers of shipping."""

from __future__ import annotations

from agents.cancellation import CANCELLED, CancellationRefused, StopShipment
from agents.messages import (
    DocumentsPacked,
    OrderDocumented,
    PaymentCaptured,
    ShipmentFailed,
    ShipmentScheduled,
    StockReserved,
)
from agents.shipping.model import planned
from streams import Outcome, Service, nothing, outcome
from tables.shipments import SHIPMENTS, Shipment

service = Service("shipping")


@service.handler(sends=[ShipmentScheduled, ShipmentFailed], shipment=SHIPMENTS)
def schedule(event: PaymentCaptured | StockReserved, shipment: Shipment | None) -> Outcome:
    """Schedule the order's shipment, if we ship to where it goes."""
    order = event.order
    if shipment is not None:
        return nothing(f"already {shipment.status}")
    shipment = planned(order)
    if shipment.status == "refused":
        return outcome(shipment=shipment, send=[ShipmentFailed(order=order, reason=shipment.reason)])
    return outcome(shipment=shipment, send=[ShipmentScheduled(order=order)])


@service.handler(sends=[ShipmentFailed, CancellationRefused], shipment=SHIPMENTS)
def stop(command: StopShipment, shipment: Shipment | None) -> Outcome:
    """Refuse the order's shipment, if it is not scheduled yet: that is the pivot. What comes to schedule it
    later finds it refused.
    """
    order = command.order
    if shipment is None:
        shipment = Shipment(status="refused", country=order.country, reason=CANCELLED)
        return outcome(shipment=shipment, send=[ShipmentFailed(order=order, reason=CANCELLED)])
    if shipment.status == "scheduled":
        return outcome(send=[CancellationRefused(order=order)])
    return nothing(f"it does not leave: {shipment.reason}")


@service.handler(sends=[DocumentsPacked])
def pack(event: OrderDocumented) -> Outcome:
    """Put an order's files into its parcel."""
    return outcome(send=[DocumentsPacked(order_id=event.order_id, attachments=event.attachments)])
