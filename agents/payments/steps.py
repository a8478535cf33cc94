"""Payments' part in the order saga."""

from __future__ import annotations

from agents.commands import CapturePayment, RefundPayment
from agents.payments.gateway import Gateway
from agents.payments.handlers import charge
from agents.payments.model import capture_operation, refund_operation
from streams import Service
from streams.saga import Answer, Participant, done, refused
from tables.payments import PAYMENTS, Payment
from tables.sagas import PAYMENT_STEPS

service = Service("payment-steps")
participant = Participant(service, PAYMENT_STEPS)


@participant.command(payment=PAYMENTS)
async def capture(command: CapturePayment, payment: Payment | None, *, gateway: Gateway) -> Answer:
    """Charge the order's card once; an order that costs nothing is paid for already."""
    del payment  # it has only what this step has done
    payment = await charge(command.order, gateway)
    return refused(payment.reason, payment=payment) if payment.status == "failed" else done(payment=payment)


@participant.compensation(payment=PAYMENTS)
async def refund(command: RefundPayment, payment: Payment | None, *, gateway: Gateway) -> Answer:
    """Give back what was captured, also by a try of which nobody has heard; one that is still on its way to
    the gateway is declined there.
    """
    order, operation = command.order, capture_operation(command.order)
    if order.total_cents == 0:
        return done(payment=Payment(status="refunded" if payment else "cancelled"))
    charge = await gateway.void(operation=operation, cents=order.total_cents, card=order.card)
    if charge.declined:
        return done(payment=payment or Payment(status="cancelled"))
    await gateway.refund(operation=refund_operation(order), charge_operation=operation)
    return done(payment=Payment(status="refunded", cents=charge.cents, charge_id=charge.charge_id))
