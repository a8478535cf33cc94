"""`payments`, by order id: whether each order was paid for, and whether the money went back."""

from __future__ import annotations

from typing import Literal

from streams import Row, Table
from tables.values import Cents


class Payment(Row, frozen=True, kw_only=True):
    """The payment of one order.

    Attributes:
        status: `captured`; `failed` when the card was declined; `refunded` when all of it went back;
            `cancelled` when the refund came first, so that nothing will be captured.
        cents: what was captured; 0 when no money moved.
        charge_id: the payment gateway's name for the charge; empty when it was not asked.
        reason: why the card was declined; empty otherwise.
    """

    status: Literal["captured", "failed", "refunded", "cancelled"]
    cents: Cents = 0
    charge_id: str = ""
    reason: str = ""


PAYMENTS = Table("payments", Payment)
