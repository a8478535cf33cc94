"""Payments' part in the order saga."""

from __future__ import annotations

from agents.commands import CapturePayment, RefundPayment
from agents.payments.gateway import Gateway
from agents.payments.handlers import called_back, charge
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
    """Refund what was captured, also by an attempt without a known answer; a charge still on its way to
    the gateway is declined there.
    """
    if command.order.total_cents == 0:
        return done(payment=Payment(status="refunded" if payment else "cancelled"))
    given_back = await called_back(command.order, gateway)
    return done(payment=given_back or payment or Payment(status="cancelled"))
