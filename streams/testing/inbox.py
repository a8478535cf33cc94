"""A consumer inbox in memory, with the same rules as the one in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from streams.postgres.inbox import BatchHandler, EventId, Handler, InboxEvent
from streams.postgres.inbox.events import call, id_of, payload_bytes

T = TypeVar("T")


class MemoryInbox:
    """The events that one consumer has handled.

    Handlers receive the `connection` of the call or, without one, that of the constructor: a fake, or None.
    Nothing is rolled back here. If a handler raises, the test's fake must undo its writes; if the caller's
    transaction is rolled back, the test must also call `forget`.
    """

    def __init__(self, consumer_name: str, connection: Any = None) -> None:
        self.consumer_name = consumer_name
        self.events: dict[str, InboxEvent] = {}
        self._connection = connection
        self._under_way: dict[str, asyncio.Lock] = {}

    async def process_idempotent(
        self,
        event_id: EventId,
        source_topic: str,
        event_type: str,
        payload: Any,
        handler: Handler[T],
        *,
        connection: Any = None,
    ) -> T | None:
        """As `ConsumerInbox.process_idempotent`."""
        event = InboxEvent(event_id, source_topic, event_type, payload)

        async def handle(using: Any, _events: Sequence[InboxEvent]) -> T:
            result: T = await call(handler, using, payload)
            return result

        return await self.process_batch([event], handle, connection=connection)

    async def process_batch(
        self, events: Sequence[InboxEvent], handler: BatchHandler[T], *, connection: Any = None
    ) -> T | None:
        """As `ConsumerInbox.process_batch`."""
        events = [event._replace(event_id=id_of(event.event_id)) for event in events]
        for event in events:
            payload_bytes(str(event.event_id), event.payload)
        ids = sorted({str(event.event_id) for event in events})
        locks = [self._under_way.setdefault(each, asyncio.Lock()) for each in ids]
        for lock in locks:
            await lock.acquire()
        try:
            new = {str(each.event_id): each for each in reversed(events) if each.event_id not in self.events}
            if not new:
                return None
            using = self._connection if connection is None else connection
            result: T = await call(handler, using, sorted(new.values(), key=events.index))
            self.events |= new
        finally:
            for lock in locks:
                lock.release()
        return result

    def forget(self, event_id: EventId) -> None:
        """Make an event new again, after the caller's transaction was rolled back."""
        self.events.pop(id_of(event_id), None)
