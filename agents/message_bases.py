"""Base classes of the application's messages, one for each subject: an order, its documents, a SKU."""

from __future__ import annotations

from typing import Any, Self

from streams import Message
from tables.values import Attachment, Key, Order, SumOfUnits


class OrderEvent(Message, frozen=True, kw_only=True):
    """Something that happened to an order.

    Attributes:
        order: the order it is about.
    """

    SAME_KEY = True

    order: Order

    @property
    def key(self) -> str:
        """The order's id."""
        return self.order.order_id


class FailedOrderEvent(OrderEvent, frozen=True, kw_only=True):
    """Something that ends an order badly.

    Attributes:
        reason: why, a word for programs: `out_of_stock`, `unsupported_destination`, or why the card was
            declined.
    """

    reason: str


class Documents(Message, frozen=True, kw_only=True):
    """About the files that came with an order. Events about the order itself do without them.

    Attributes:
        order_id: the order's id.
        attachments: the files, as they came with the order.
    """

    order_id: Key
    attachments: tuple[Attachment, ...]

    @property
    def key(self) -> str:
        """The order's id."""
        return self.order_id


class LineMessage(Message, frozen=True, kw_only=True):
    """About the pieces of one SKU in an order.

    Attributes:
        order_id: the order it is about.
        sku: the SKU.
        units: pieces, at least 1.
    """

    order_id: Key
    sku: Key
    units: SumOfUnits


class LineCommand(LineMessage, frozen=True, kw_only=True):
    """Asks the stock of a SKU for something."""

    @property
    def key(self) -> str:
        """The SKU."""
        return self.sku


class LineEvent(LineMessage, frozen=True, kw_only=True):
    """The stock's answer to an order."""

    @property
    def key(self) -> str:
        """The order's id."""
        return self.order_id

    @classmethod
    def to(cls, command: LineCommand, **more: Any) -> Self:
        """The answer to `command`."""
        return cls(order_id=command.order_id, sku=command.sku, units=command.units, **more)
