"""What payments does. A declined card is an event; an outage is an exception that passes through."""

from __future__ import annotations

import msgspec

from agents.messages import (
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    ShipmentFailed,
    StockReservationFailed,
    StockReserved,
)
from agents.payments.gateway import Gateway
from agents.payments.model import capture_operation, refund_operation
from streams.handlers import Service
from streams.outcome import Outcome, nothing, outcome
from tables.payments import PAYMENTS, Payment

service = Service("payments")


@service.handler(sends=[PaymentCaptured, PaymentFailed], payment=PAYMENTS)
async def capture(
    event: OrderPlaced | StockReserved, payment: Payment | None, *, gateway: Gateway
) -> Outcome:
    """Charge the order's card once; an order that costs nothing is paid for already."""
    order = event.order
    if payment is not None:
        return nothing(f"already {payment.status}")
    if order.total_cents == 0:
        return outcome(payment=Payment(status="captured"), send=[PaymentCaptured(order=order, cents=0)])
    charge = await gateway.charge(
        operation=capture_operation(order), cents=order.total_cents, card=order.card
    )
    if charge.declined:
        return outcome(
            payment=Payment(status="failed", charge_id=charge.charge_id, reason=charge.reason),
            send=[PaymentFailed(order=order, reason=charge.reason)],
        )
    return outcome(
        payment=Payment(status="captured", cents=charge.cents, charge_id=charge.charge_id),
        send=[PaymentCaptured(order=order, cents=charge.cents)],
    )


@service.handler(sends=[PaymentRefunded], payment=PAYMENTS)
async def refund(
    event: StockReservationFailed | ShipmentFailed, payment: Payment | None, *, gateway: Gateway
) -> Outcome:
    """Give back what was captured. If it comes before the capture, nothing will be captured."""
    order = event.order
    if payment is None:
        return outcome(payment=Payment(status="cancelled"), send=[PaymentRefunded(order=order, cents=0)])
    if payment.status != "captured":
        return nothing(f"nothing to give back: {payment.status}")
    if payment.cents:
        await gateway.refund(operation=refund_operation(order), charge_operation=capture_operation(order))
    return outcome(
        payment=msgspec.structs.replace(payment, status="refunded"),
        send=[PaymentRefunded(order=order, cents=payment.cents)],
    )
