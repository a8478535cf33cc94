"""Every message of the application: events in the past tense, commands in the imperative.

An event about an order carries the order, so that a handler needs to know nothing of what came before.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from agents.message_bases import Documents, FailedOrderEvent, LineCommand, LineEvent, OrderEvent
from streams import Message
from tables.values import Attachment, Cents, Key, Order, OrderLine, SkuUnits, Units

__all__ = [
    "Attachment",
    "DocumentsPacked",
    "HandleLines",
    "LineRefused",
    "LineReleased",
    "LineReserved",
    "LinesAction",
    "Order",
    "OrderCancelled",
    "OrderConfirmed",
    "OrderDocumented",
    "OrderLine",
    "OrderPlaced",
    "PaymentCaptured",
    "PaymentFailed",
    "PaymentRefunded",
    "ReleaseLine",
    "ReservationSettled",
    "ReserveLine",
    "ShipLine",
    "ShipmentFailed",
    "ShipmentScheduled",
    "SkuUnits",
    "StockReceived",
    "StockReleased",
    "StockReservationFailed",
    "StockReserved",
]

#: What to do with the SKUs of an order.
LinesAction = Literal["reserve", "release", "ship"]


class OrderPlaced(OrderEvent, frozen=True, kw_only=True):
    """A customer placed an order: the beginning of every order.

    Attributes:
        attachments: files that came with it, such as a gift picture.
    """

    TOPIC = "orders.order.placed.v1"

    attachments: tuple[Attachment, ...] = ()


class OrderConfirmed(OrderEvent, frozen=True, kw_only=True):
    """The order is paid for, and it ships: its good end."""

    TOPIC = "orders.order.confirmed.v1"


class OrderCancelled(FailedOrderEvent, frozen=True, kw_only=True):
    """The order is cancelled: its other end. An order that no service takes comes without its lines."""

    TOPIC = "orders.order.cancelled.v1"


class OrderDocumented(Documents, frozen=True, kw_only=True):
    """An order came with files, for shipping."""

    TOPIC = "orders.order.documented.v1"


class DocumentsPacked(Documents, frozen=True, kw_only=True):
    """The files of an order are in its parcel."""

    TOPIC = "shipping.documents.packed.v1"


class StockReceived(Message, frozen=True, kw_only=True):
    """Pieces of a SKU came in.

    Attributes:
        sku: the SKU.
        units: pieces, at least 1.
    """

    TOPIC = "inventory.stock.received.v1"

    sku: Key
    units: Units

    @property
    def key(self) -> str:
        """The SKU."""
        return self.sku


class ReserveLine(LineCommand, frozen=True, kw_only=True):
    """Set pieces aside for an order, all or none."""

    TOPIC = "inventory.commands.reserve-line"


class ReleaseLine(LineCommand, frozen=True, kw_only=True):
    """Give back what was set aside for an order, or never set it aside."""

    TOPIC = "inventory.commands.release-line"


class ShipLine(LineCommand, frozen=True, kw_only=True):
    """Let go what was set aside for an order: it leaves."""

    TOPIC = "inventory.commands.ship-line"


class HandleLines(Message, frozen=True, kw_only=True):
    """Inventory's own: go on with these SKUs of an order that has too many for one turn.

    Attributes:
        order_id: the order it is about.
        action: what to do with them.
        lines: the SKUs, each once.
    """

    TOPIC = "inventory.commands.handle-lines"

    order_id: Key
    action: Annotated[
        LinesAction,
        msgspec.Meta(title="LinesAction", description="What to do with the SKUs."),
    ]
    lines: tuple[SkuUnits, ...]

    @property
    def key(self) -> str:
        """The order's id."""
        return self.order_id


class LineReserved(LineEvent, frozen=True, kw_only=True):
    """The pieces are set aside."""

    TOPIC = "inventory.line.reserved.v1"


class LineRefused(LineEvent, frozen=True, kw_only=True):
    """The pieces are not set aside.

    Attributes:
        reason: `out_of_stock`, or `released` when the release came before the reservation.
    """

    TOPIC = "inventory.line.refused.v1"

    reason: str


class LineReleased(LineEvent, frozen=True, kw_only=True):
    """Nothing is set aside for the order any more."""

    TOPIC = "inventory.line.released.v1"


class StockReserved(OrderEvent, frozen=True, kw_only=True):
    """Every piece of the order is set aside."""

    TOPIC = "inventory.stock.reserved.v1"


class StockReservationFailed(FailedOrderEvent, frozen=True, kw_only=True):
    """Something of the order is out of stock; whatever was set aside is being given back."""

    TOPIC = "inventory.stock.reservation-failed.v1"


class StockReleased(OrderEvent, frozen=True, kw_only=True):
    """All that was set aside for the order is free again."""

    TOPIC = "inventory.stock.released.v1"


class ReservationSettled(OrderEvent, frozen=True, kw_only=True):
    """All of the stock has answered, for an order whose stock was commanded: the reply to that command.

    Attributes:
        status: the command's result.
        reason: a word for programs when it is refused, such as `out_of_stock`.
    """

    TOPIC = "inventory.reservation.settled.v1"

    status: Annotated[
        Literal["reserved", "refused", "released"],
        msgspec.Meta(title="ReservationStatus", description="What has come of it."),
    ]
    reason: str = ""


class PaymentCaptured(OrderEvent, frozen=True, kw_only=True):
    """The order is paid for.

    Attributes:
        cents: what was captured, in cents; 0 when the order costs nothing.
    """

    TOPIC = "payments.payment.captured.v1"

    cents: Cents


class PaymentFailed(FailedOrderEvent, frozen=True, kw_only=True):
    """The card was declined, and no money moved.

    Attributes:
        reason: why, in the gateway's word: `card_declined` or `unknown_card`.
    """

    TOPIC = "payments.payment.failed.v1"


class PaymentRefunded(OrderEvent, frozen=True, kw_only=True):
    """The customer has all the money back.

    Attributes:
        cents: what was given back, in cents; 0 when nothing had been taken.
    """

    TOPIC = "payments.payment.refunded.v1"

    cents: Cents


class ShipmentScheduled(OrderEvent, frozen=True, kw_only=True):
    """The order will leave."""

    TOPIC = "shipping.shipment.scheduled.v1"


class ShipmentFailed(FailedOrderEvent, frozen=True, kw_only=True):
    """The order cannot be shipped."""

    TOPIC = "shipping.shipment.failed.v1"
