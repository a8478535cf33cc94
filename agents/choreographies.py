"""Who does what when: the order's way through the services, in either order. Each line is a message and what
is done about it.
"""

from __future__ import annotations

from agents.cancellation import RequestCancellation, StopShipment
from agents.inventory import handlers as inventory
from agents.messages import (
    HandleLines,
    LineRefused,
    LineReleased,
    LineReserved,
    OrderDocumented,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    ReleaseLine,
    ReserveLine,
    ShipLine,
    ShipmentFailed,
    ShipmentScheduled,
    StockReceived,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from agents.orders import handlers as orders
from agents.payments import handlers as payments
from agents.shipping import handlers as shipping
from streams import choreography, on

# fmt: off

#: How inventory works inside, the same in both: orders are split by SKU, and the answers gathered by order.
stock_keeping = (
    on(StockReceived, inventory.receive),
    on(HandleLines,   inventory.handle_lines),
    on(ReserveLine,   inventory.reserve_line),
    on(LineReserved,  inventory.gather),
    on(LineRefused,   inventory.gather),
    on(ReleaseLine,   inventory.release_line),
    on(LineReleased,  inventory.gather_released),
    on(ShipLine,      inventory.ship_line),
)

#: Files of an order are packed whatever the order's outcome is.
documents = (
    on(OrderDocumented, shipping.pack),
)

#: A client calls an order off: shipping knows whether it is too late, and a saga knows it of its own order.
calling_off = (
    on(RequestCancellation, orders.call_off),
    on(StopShipment,        shipping.stop),
)

#: Stock, payment, shipment.
stock_first = choreography(
    on(OrderPlaced,            orders.open,    inventory.split_order),
    on(StockReserved,          orders.note,    payments.capture),
    on(PaymentCaptured,        orders.note,    shipping.schedule),
    on(ShipmentScheduled,      orders.confirm, inventory.ship),

    on(StockReservationFailed, orders.cancel),
    on(PaymentFailed,          orders.cancel,  inventory.release),
    on(ShipmentFailed,         orders.cancel,  inventory.release, payments.refund),

    on(PaymentRefunded,        orders.note),
    on(StockReleased,          orders.note),
    *stock_keeping,
    *documents,
    *calling_off,
)

#: Payment, stock, shipment.
payment_first = choreography(
    on(OrderPlaced,            orders.open,    payments.capture),
    on(PaymentCaptured,        orders.note,    inventory.split_order),
    on(StockReserved,          orders.note,    shipping.schedule),
    on(ShipmentScheduled,      orders.confirm, inventory.ship),

    on(PaymentFailed,          orders.cancel),
    on(StockReservationFailed, orders.cancel,  payments.refund),
    on(ShipmentFailed,         orders.cancel,  payments.refund, inventory.release),

    on(PaymentRefunded,        orders.note),
    on(StockReleased,          orders.note),
    *stock_keeping,
    *documents,
    *calling_off,
)
