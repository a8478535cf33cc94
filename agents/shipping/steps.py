"""Shipping's part in the order saga."""

from __future__ import annotations

from agents.commands import CancelShipment, ScheduleShipment
from agents.shipping.model import planned
from streams import Service
from streams.saga import Answer, Participant, done, refused
from tables.sagas import SHIPPING_STEPS
from tables.shipments import SHIPMENTS, Shipment

service = Service("shipping-steps")
participant = Participant(service, SHIPPING_STEPS)


@participant.command(shipment=SHIPMENTS)
def schedule(command: ScheduleShipment, shipment: Shipment | None) -> Answer:
    """Schedule the order's shipment, if we ship to where it goes."""
    shipment = planned(command.order)
    if shipment.status == "refused":
        return refused(shipment.reason, shipment=shipment)
    return done(shipment=shipment)


@participant.compensation(shipment=SHIPMENTS)
def cancel(command: CancelShipment, shipment: Shipment | None) -> Answer:
    """It does not leave."""
    del command, shipment
    return done(shipment=None)
