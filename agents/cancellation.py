"""Messages about cancelling an order: the client's request, and the refusal when it is too late.

An order that is cancelled in time ends like any other that fails: by `OrderCancelled`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from agents.message_bases import OrderEvent
from streams import Message
from tables.values import Key

#: Why an order was cancelled that a client has called off: a word for programs.
CANCELLED = "cancelled"


class RequestCancellation(Message, frozen=True, kw_only=True):
    """Asks that an order be undone, if it is not past its pivot. It may come before the order itself.

    Attributes:
        order_id: the order's id.
    """

    TOPIC = "orders.commands.request-cancellation"

    order_id: Key

    @property
    def key(self) -> str:
        """The order's id."""
        return self.order_id


class StopShipment(OrderEvent, frozen=True, kw_only=True):
    """A choreographed order was called off: it is not to leave, if its shipment is not scheduled yet."""

    TOPIC = "shipping.commands.stop"


class CancellationRefused(OrderEvent, frozen=True, kw_only=True):
    """The order is past its pivot, and stays as it is.

    Attributes:
        status: what has become of the order, or will.
    """

    TOPIC = "orders.order.cancellation-refused.v1"

    status: Annotated[
        Literal["pending", "confirmed", "cancelled"],
        msgspec.Meta(title="OrderStatus", description="The order's status."),
    ] = "confirmed"
