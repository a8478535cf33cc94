"""How many sagas have not ended though no message is left to be handled: they wait for a timer of theirs."""

from __future__ import annotations

from agents.commands import CancelOrder, ConfirmOrder, OrderSubmitted
from streams.runtime.client import TopicReader


async def unended(bootstrap: str) -> int:
    """By what they were begun with, and by their last words."""
    begun, ended = set[bytes | None](), set[bytes | None]()
    async with TopicReader(
        bootstrap, [OrderSubmitted.TOPIC, ConfirmOrder.TOPIC, CancelOrder.TOPIC]
    ) as reader:
        async for record in reader.to_end():
            (begun if record.topic == OrderSubmitted.TOPIC else ended).add(record.key)
    return len(begun - ended)
