"""The order's way as a saga: one place says what happens in which order, and how each step is undone.

Each command is sent after the reply to the one before. A step that is refused (too little stock, a declined
card, a country without delivery) was not done: what was done before it is undone, the last of it first,
each after the reply to the one before; then the order is cancelled. So it is when a step fails, or has no
reply within `timeout` seconds; but it may have been done all the same, so it is undone itself, before the
others, and a late success changes nothing.

Once the shipment is known to be scheduled, the pivot, there is no way back; `CancelShipment` is for one that
had no reply. A compensation is tried again, ten times over half an hour. One that keeps failing leaves
the saga `failed`: the order is not settled, and its other compensations wait, until an
operator has it retried, skipped or marked as done (`steadfaust saga`).
"""

from __future__ import annotations

from agents.cancellation import CANCELLED, CancellationRefused
from agents.commands import (
    CancelOrder,
    CancelShipment,
    CapturePayment,
    ConfirmOrder,
    OrderSagaRepair,
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
from streams import Rows, on
from streams.saga import Admission, admitted, orchestrate, saga, turned_away
from tables.sagas import ORDER_SAGAS
from tables.ways import ORDER_WAYS, OrderWay, enter


def _refused(start: OrderSubmitted) -> str:
    """Why an order gets no saga: orders cancels it at once."""
    return start.order.refusal()


OrderSaga = (
    saga("order", started_by=OrderSubmitted, forgets=["attachments"], unless=_refused)
    .step("reserve_inventory", ReserveStock, compensate=ReleaseStock, timeout=30)
    .step("process_payment", CapturePayment, compensate=RefundPayment, timeout=30)
    .pivot("schedule_shipping", ScheduleShipment, compensate=CancelShipment, timeout=30)
    .ends(completed=ConfirmOrder, compensated=CancelOrder, too_late=CancellationRefused)
)


def _admit(start: OrderSubmitted, way: Rows[OrderWay]) -> Admission:
    """An order that goes another way gets none; one that was called off before is settled so."""
    entry = enter(way, "submitted")
    if entry.cancelled:
        return turned_away(entry.refusal, send=[CancelOrder(order=start.order, reason=CANCELLED)])
    return turned_away(entry.refusal) if entry.refusal else admitted(way=entry.rows)


order_saga = orchestrate(
    OrderSaga,
    service=orders.service,
    table=ORDER_SAGAS,
    log=OrderSagaTransition,
    repairs=OrderSagaRepair,
    admit=_admit,
    way=ORDER_WAYS.any,
)

# fmt: off

#: Which handlers take which message. The same workers run a choreography, for placed orders, and its handlers
#: keep the stock of each SKU: `stock_steps` sends them commands, and settles an order's reservation.
orchestrated = (
    on(OrderSubmitted,     orders.open, order_saga),
    on(OrderSagaReply,     order_saga),
    on(OrderSagaRepair,    order_saga, inbox=True),  # operators send it, too

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
