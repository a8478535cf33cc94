"""`payments`, by order id: whether each order was paid for, and whether the money went back."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from streams import Row, Table
from tables.values import Cents


class Payment(Row, frozen=True, kw_only=True):
    """The payment of one order.

    Attributes:
        status: the payment's status.
        cents: what was captured, in cents; 0 when no money moved.
        charge_id: the payment gateway's name for the charge; empty when there was no request.
        reason: why the card was declined; empty otherwise.
    """

    status: Annotated[
        Literal["captured", "failed", "refunded", "cancelled"],
        msgspec.Meta(
            title="PaymentStatus",
            description="failed: the card was declined; cancelled: the refund came first, so that nothing"
            " will be captured.",
        ),
    ]
    cents: Cents = 0
    charge_id: str = ""
    reason: str = ""


PAYMENTS = Table("payments", Payment)
