"""Turn a request to place an order into the message that begins the order, and into the order as shown."""

from __future__ import annotations

from datetime import datetime
from hashlib import blake2b
from typing import Literal

import msgspec
import uuid_utils

from agents.api.placing import Placing
from agents.api.wire import OrderView, PlaceOrder
from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from agents.settings import OrdersWay
from tables.values import Attachment, Order, OrderLine

_encode = msgspec.json.Encoder().encode


def begin(request: PlaceOrder, key: str, *, orders_way: OrdersWay, now: datetime) -> Placing:
    """The order of a request, under the client's id or a new one."""
    order_id = request.order_id or str(uuid_utils.uuid7())
    order = Order(
        order_id=order_id,
        customer=request.customer,
        lines=tuple(OrderLine(sku=line.sku, units=line.units) for line in request.lines),
        total_cents=request.total_cents,
        card=request.card,
        country=request.country,
    )
    files = tuple(
        Attachment(name=file.name, content_type=file.content_type, data=file.data)
        for file in request.attachments
    )
    way = way_of(order_id, orders_way)
    begins = OrderPlaced if way == "placed" else OrderSubmitted
    view = OrderView(
        order_id=order_id,
        status="pending",
        reason="",
        cancellation="none",
        customer=request.customer,
        country=request.country,
        total_cents=request.total_cents,
        way=way,
        created_at=now,
        updated_at=now,
        lines=request.lines,
    )
    return Placing(key, digest(request), begins(order=order, attachments=files), view)


def way_of(order_id: str, orders_way: OrdersWay) -> Literal["placed", "submitted"]:
    """Return the way that an order goes: with `both` half of the orders go either way, by their ids."""
    if orders_way is OrdersWay.BOTH:
        is_placed = blake2b(order_id.encode(), digest_size=1).digest()[0] % 2 == 0
    else:
        is_placed = orders_way is OrdersWay.PLACED
    return "placed" if is_placed else "submitted"


def digest(request: PlaceOrder) -> bytes:
    """The same for the same request, however its JSON is written."""
    return blake2b(_encode(request), digest_size=16).digest()
