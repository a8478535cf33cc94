"""A consumer inbox in memory, with the rules of the one in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from streams.postgres.inbox import InboxEvent
from streams.postgres.inbox.inbox import require_id

T = TypeVar("T")


class MemoryInbox:
    """What one consumer has handled.

    Handlers get `connection` as it is given here: a fake of what they write to, or None. What they write is
    the fake's to undo when they raise.
    """

    def __init__(self, consumer_name: str, connection: Any = None) -> None:
        self.consumer_name = consumer_name
        self.events: dict[str, InboxEvent] = {}
        self._connection = connection
        self._under_way: dict[str, asyncio.Lock] = {}

    async def process_idempotent(
        self,
        event_id: str,
        source_topic: str,
        event_type: str,
        payload: bytes,
        handler: Callable[[Any, bytes], Awaitable[T]],
    ) -> T | None:
        """As `ConsumerInbox.process_idempotent`."""
        event = InboxEvent(event_id, source_topic, event_type, payload)

        async def handle(connection: Any, _events: Sequence[InboxEvent]) -> T:
            return await handler(connection, payload)

        return await self.process_batch([event], handle)

    async def process_batch(
        self,
        events: Sequence[InboxEvent],
        handler: Callable[[Any, Sequence[InboxEvent]], Awaitable[T]],
    ) -> T | None:
        """As `ConsumerInbox.process_batch`."""
        for event in events:
            require_id(event.event_id)
        ids = sorted({event.event_id for event in events})
        locks = [self._under_way.setdefault(each, asyncio.Lock()) for each in ids]
        for lock in locks:
            await lock.acquire()
        try:
            new = {each.event_id: each for each in reversed(events) if each.event_id not in self.events}
            if not new:
                return None
            result = await handler(self._connection, sorted(new.values(), key=list(events).index))
            self.events |= new
        finally:
            for lock in locks:
                lock.release()
        return result
