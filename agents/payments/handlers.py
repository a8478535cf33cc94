"""The handlers of payments. A declined card is an event; an outage is an exception that passes through."""

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
from streams import Message, Outcome, Rows, Service, nothing, outcome
from tables.payments import PAYMENTS, Payment
from tables.values import Order
from tables.ways import NO_ENTRY, ORDER_WAYS, OrderWay, enter

service = Service("payments")


@service.handler(sends=[PaymentCaptured, PaymentFailed], payment=PAYMENTS, way=ORDER_WAYS.any)
async def capture(
    event: OrderPlaced | StockReserved, payment: Payment | None, way: Rows[OrderWay], *, gateway: Gateway
) -> Outcome:
    """Charge the order's card once; an order that costs nothing is paid for already."""
    order = event.order
    if payment is not None:
        return nothing(f"already {payment.status}")
    if reason := order.refusal():
        return nothing(f"orders cancels it: {reason}")
    entry = enter(way, "placed") if isinstance(event, OrderPlaced) else NO_ENTRY
    if entry.refusal:
        return nothing(entry.refusal)
    payment = await charge(order, gateway)
    sent: Message = PaymentCaptured(order=order, cents=payment.cents)
    if payment.status == "failed":
        sent = PaymentFailed(order=order, reason=payment.reason)
    return outcome(payment=payment, way=entry.rows, send=[sent])


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
        payment = await called_back(order, gateway) or Payment(status="cancelled")
        return outcome(payment=payment, send=[PaymentRefunded(order=order, cents=payment.cents)])
    if payment.status != "captured":
        return nothing(f"nothing to give back: {payment.status}")
    if payment.cents:
        await gateway.refund(operation=refund_operation(order), charge_operation=capture_operation(order))
    return outcome(
        payment=msgspec.structs.replace(payment, status="refunded"),
        send=[PaymentRefunded(order=order, cents=payment.cents)],
    )


async def called_back(order: Order, gateway: Gateway) -> Payment | None:
    """The order's payment, refunded, of a capture without a known answer; None: there was none, and will
    be none. A charge that is still on its way to the gateway is declined there.
    """
    operation = capture_operation(order)
    if order.total_cents == 0:
        return None
    charge = await gateway.void(operation=operation, cents=order.total_cents, card=order.card)
    if charge.declined:
        return None
    await gateway.refund(operation=refund_operation(order), charge_operation=operation)
    return Payment(status="refunded", cents=charge.cents, charge_id=charge.charge_id)
