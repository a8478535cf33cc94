"""How many sagas have not ended though no message is left to be handled: they wait for a timer of theirs."""

from __future__ import annotations

from agents.commands import OrderSubmitted
from agents.messages import OrderCancelled, OrderConfirmed
from streams.runtime.client import TopicReader


async def unended(bootstrap: str) -> int:
    """By what they were begun with, and the ends of their orders: one that goes another way has no saga."""
    begun, ended = set[bytes | None](), set[bytes | None]()
    async with TopicReader(
        bootstrap, [OrderSubmitted.TOPIC, OrderConfirmed.TOPIC, OrderCancelled.TOPIC]
    ) as reader:
        async for record in reader.to_end():
            (begun if record.topic == OrderSubmitted.TOPIC else ended).add(record.key)
    return len(begun - ended)
