"""The messages of the order saga: its commands, the reply to all of them, and its transitions."""

from __future__ import annotations

from agents.message_bases import FailedOrderEvent, OrderEvent
from agents.messages import (
    Attachment,
)
from streams.saga import Command, Repair, Reply, SagaTransition
from tables.values import Order


class OrderSubmitted(OrderEvent, frozen=True, kw_only=True):
    """A customer placed an order that a saga conducts: the beginning of an orchestrated order.

    Attributes:
        attachments: files that came with it, such as a gift picture.
    """

    TOPIC = "orders.order.submitted.v1"

    attachments: tuple[Attachment, ...] = ()


class OrderSagaReply(Reply, frozen=True, kw_only=True):
    """How a command of the order saga ended."""

    TOPIC = "orders.saga.replies"
    SAME_KEY = True


class OrderSagaTransition(SagaTransition, frozen=True, kw_only=True):
    """Something that happened to an order's saga."""

    TOPIC = "orders.saga.transitions.v1"


class OrderSagaRepair(Repair, frozen=True, kw_only=True):
    """An operator's command to an order's saga."""

    TOPIC = "orders.saga.repairs"


class OrderCommand(Command, frozen=True, kw_only=True):
    """Asks a service for its part in an order.

    Attributes:
        order: the order it is about.
    """

    REPLY = OrderSagaReply
    SAME_KEY = True

    order: Order


class ReserveStock(OrderCommand, frozen=True, kw_only=True):
    """Set aside every piece of the order, or none."""

    TOPIC = "inventory.commands.reserve"


class ReleaseStock(OrderCommand, frozen=True, kw_only=True):
    """Give back all that is set aside for the order."""

    TOPIC = "inventory.commands.release"


class CapturePayment(OrderCommand, frozen=True, kw_only=True):
    """Charge the order's card."""

    TOPIC = "payments.commands.capture"


class RefundPayment(OrderCommand, frozen=True, kw_only=True):
    """Give the money back."""

    TOPIC = "payments.commands.refund"


class ScheduleShipment(OrderCommand, frozen=True, kw_only=True):
    """See to it that the order leaves."""

    TOPIC = "shipping.commands.schedule"


class CancelShipment(OrderCommand, frozen=True, kw_only=True):
    """It is not to leave."""

    TOPIC = "shipping.commands.cancel"


class ConfirmOrder(OrderEvent, frozen=True, kw_only=True):
    """The order's saga is complete: settle it so, and let its stock go."""

    TOPIC = "orders.commands.confirm"


class CancelOrder(FailedOrderEvent, frozen=True, kw_only=True):
    """All of the order's saga is undone: settle it so."""

    TOPIC = "orders.commands.cancel"
