"""The order's way as a saga: one place says what happens in which order, and how each step is undone.

A step that is refused, or of which nothing is heard in time, turns the order back: what was done, or may have
been, is undone from the last step to the first, each after the reply to the one before. A compensation that
keeps failing leaves the saga `failed`, for an operator. When the shipment is scheduled there is no way back.
"""

from __future__ import annotations

from agents.commands import (
    CancelOrder,
    CancelShipment,
    CapturePayment,
    ConfirmOrder,
    OrderSagaReply,
    OrderSagaTransition,
    OrderSubmitted,
    RefundPayment,
    ReleaseStock,
    ReserveStock,
    ScheduleShipment,
)
from agents.inventory import handlers as inventory
from agents.inventory import steps as stock_steps
from agents.messages import ReservationSettled
from agents.orders import handlers as orders
from agents.payments import steps as payment_steps
from agents.shipping import steps as shipping_steps
from streams.choreography import on
from streams.saga.definition import saga
from streams.saga.engine import orchestrate
from tables.sagas import ORDER_SAGAS

OrderSaga = (
    saga("order", started_by=OrderSubmitted)
    .step("reserve_inventory", ReserveStock, compensate=ReleaseStock, timeout=30)
    .step("process_payment", CapturePayment, compensate=RefundPayment, timeout=30)
    .pivot("schedule_shipping", ScheduleShipment, compensate=CancelShipment, timeout=30)
    .ends(completed=ConfirmOrder, compensated=CancelOrder)
)

order_saga = orchestrate(OrderSaga, service=orders.service, table=ORDER_SAGAS, log=OrderSagaTransition)

# fmt: off

#: Who does what when, beside the choreography in the same workers, whose handlers keep the stock by SKU.
orchestrated = (
    on(OrderSubmitted,     orders.open, order_saga),
    on(OrderSagaReply,     order_saga),

    on(ReserveStock,       stock_steps.reserve),
    on(ReleaseStock,       stock_steps.release),
    on(ReservationSettled, stock_steps.answer),

    on(CapturePayment,     payment_steps.capture),
    on(RefundPayment,      payment_steps.refund),

    on(ScheduleShipment,   shipping_steps.schedule),
    on(CancelShipment,     shipping_steps.cancel),

    on(ConfirmOrder,       orders.settle, inventory.ship),
    on(CancelOrder,        orders.settle),
)
