"""`shipments`, by order id: where each order goes, or why it does not."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from streams import Row, Table


class Shipment(Row, frozen=True, kw_only=True):
    """The shipment of one order.

    Attributes:
        status: whether it will leave.
        country: where it should go, ISO 3166-1 alpha-2.
        reason: why it was refused; empty otherwise.
    """

    status: Annotated[
        Literal["scheduled", "refused"],
        msgspec.Meta(title="ShipmentStatus", description="Whether it will leave."),
    ]
    country: str
    reason: str = ""


SHIPMENTS = Table("shipments", Shipment)
