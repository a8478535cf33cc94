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
from streams import Outcome, Service, nothing, outcome
from tables.payments import PAYMENTS, Payment
from tables.values import Order

service = Service("payments")


@service.handler(sends=[PaymentCaptured, PaymentFailed], payment=PAYMENTS)
async def capture(
    event: OrderPlaced | StockReserved, payment: Payment | None, *, gateway: Gateway
) -> Outcome:
    """Charge the order's card once; an order that costs nothing is paid for already."""
    order = event.order
    if payment is not None:
        return nothing(f"already {payment.status}")
    if reason := order.refusal():
        return nothing(f"orders cancels it: {reason}")
    payment = await charge(order, gateway)
    if payment.status == "failed":
        return outcome(payment=payment, send=[PaymentFailed(order=order, reason=payment.reason)])
    return outcome(payment=payment, send=[PaymentCaptured(order=order, cents=payment.cents)])


async def charge(order: Order, gateway: Gateway) -> Payment:
    """The order's payment, captured or failed; one that costs nothing does without the gateway."""
    if order.total_cents == 0:
        return Payment(status="captured")
    made = await gateway.charge(operation=capture_operation(order), cents=order.total_cents, card=order.card)
    if made.declined:
        return Payment(status="failed", charge_id=made.charge_id, reason=made.reason)
    return Payment(status="captured", cents=made.cents, charge_id=made.charge_id)


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
