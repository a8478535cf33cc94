"""Names of payments' operations at the gateway: the same for each attempt, edit and replay."""

from __future__ import annotations

from tables.values import Order


def capture_operation(order: Order) -> str:
    """The one charge of an order."""
    return f"capture:{order.order_id}"


def refund_operation(order: Order) -> str:
    """Giving that charge back."""
    return f"refund:{order.order_id}"
