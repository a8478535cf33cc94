"""What is told of orders, as records that the projection reads."""

from typing import Any

from agents.message_bases import OrderEvent
from agents.messages import OrderCancelled, OrderConfirmed
from schemas import latest
from streams.kafka.records.batches import Plain
from streams.model.codecs import Schemas, avro
from streams.model.envelope import new_headers
from tables.values import Order, OrderLine

MAKE = avro(latest, Schemas())


def order(name: str, **more: Any) -> Order:
    said = {"customer": "ada", "total_cents": 1990, "card": "c", "country": "SE"} | more
    return Order(order_id=name, lines=(OrderLine(sku="cup", units=2),), **said)


def told(message: OrderEvent, event_id: str) -> Plain:
    kind = type(message)
    headers = new_headers(kind.TOPIC, message.key, source="orders", time=0.0, message_id=event_id)
    return Plain(kind.TOPIC, 0, 0, 0, message.key.encode(), MAKE(kind, kind.TOPIC).encode(message), headers)


def confirmed(name: str) -> Plain:
    return told(OrderConfirmed(order=order(name)), f"{name}:confirmed")


def cancelled(name: str, reason: str = "out_of_stock") -> Plain:
    return told(OrderCancelled(order=order(name), reason=reason), f"{name}:cancelled")
