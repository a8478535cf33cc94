"""The order's way as a saga: one place says what happens in which order, and how each step is undone.

A step that is refused, or of which nothing is heard in time, turns the order back: what was done, or may have
been, is undone from the last step to the first, each after the reply to the one before. A compensation that
keeps failing leaves the saga `failed`, for an operator. When the shipment is scheduled there is no way back.
"""

from __future__ import annotations

from agents.choreographies import stock_keeping
from agents.commands import (
    CancelShipment,
    CapturePayment,
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
from agents.messages import (
    OrderCancelled,
    OrderConfirmed,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from agents.orders import handlers as orders
from agents.payments import steps as payment_steps
from agents.shipping import steps as shipping_steps
from streams.choreography import choreography, on
from streams.saga.definition import saga
from streams.saga.engine import orchestrate
from tables.sagas import ORDER_SAGAS

OrderSaga = (
    saga("order", started_by=OrderSubmitted)
    .step("reserve_inventory", ReserveStock, compensate=ReleaseStock, timeout=30)
    .step("process_payment", CapturePayment, compensate=RefundPayment, timeout=30)
    .pivot("schedule_shipping", ScheduleShipment, compensate=CancelShipment, timeout=30)
    .ends(completed=OrderConfirmed, compensated=OrderCancelled)
)

order_saga = orchestrate(OrderSaga, service=orders.service, table=ORDER_SAGAS, log=OrderSagaTransition)

# fmt: off

#: Who does what when. Inventory splits an order by SKU and gathers the answers, as in the choreographies.
orchestrated = choreography(
    on(OrderSubmitted,         orders.follow, order_saga),
    on(OrderSagaReply,         order_saga),

    on(ReserveStock,           stock_steps.reserve),
    on(StockReserved,          stock_steps.reserved),
    on(StockReservationFailed, stock_steps.reserved),
    on(ReleaseStock,           stock_steps.release),
    on(StockReleased,          stock_steps.released),

    on(CapturePayment,         payment_steps.capture),
    on(RefundPayment,          payment_steps.refund),

    on(ScheduleShipment,       shipping_steps.schedule),
    on(CancelShipment,         shipping_steps.cancel),

    on(OrderConfirmed,         orders.settle, inventory.ship),
    on(OrderCancelled,         orders.settle),
    *stock_keeping,
)
