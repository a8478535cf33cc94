"""The consumer inbox: an event's handler changes the database once, however often the event comes.

The mark that an event was handled and what its handler writes are one transaction. The insert of the mark
decides who runs, so that of two consumers with the same event one waits for the other.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from streams.errors import SettingsError
from streams.postgres.database import Connection, Database
from streams.postgres.inbox.events import EventId, call, id_of, payload_bytes
from streams.postgres.inbox.metrics import InboxMetrics
from streams.postgres.statements import statements
from streams.units import DAY

T = TypeVar("T")
#: Handles one event; declared as `handler(connection, payload)`, `handler(payload)` or `handler()`. What it
#: writes by the connection commits with the mark, or not at all.
Handler: TypeAlias = (
    Callable[[Connection, Any], Awaitable[T]] | Callable[[Any], Awaitable[T]] | Callable[[], Awaitable[T]]
)

_SQL = statements(Path(__file__).with_name("inbox.sql"))
_FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC)
#: Rows that one transaction of a cleanup deletes at most.
CLEANUP_BATCH = 10_000
#: Characters of a consumer's name, and of a topic and a type as they are kept.
_MOST_TEXT = 255


class InboxEvent(NamedTuple):
    """An event of a batch, with what `process_idempotent` takes of it. Handlers get its id as text."""

    event_id: EventId
    source_topic: str
    event_type: str
    payload: Any


#: Handles the new events of a batch, in their order, in one transaction; declared as a `Handler` is.
BatchHandler: TypeAlias = (
    Callable[[Connection, Sequence[InboxEvent]], Awaitable[T]]
    | Callable[[Sequence[InboxEvent]], Awaitable[T]]
    | Callable[[], Awaitable[T]]
)


class ConsumerInbox:
    """The events that one consumer has handled.

    Arguments:
        storage: the database, open.
        consumer_name: who handles; each consumer handles an event once.
        metrics: where to count; None: nowhere.
        duplicates_within: for how many seconds after an event its duplicate may come: how long dead letters
            are kept, and the longest retry path. A cleanup that would forget earlier is refused. None: it
            is not known, and a cleanup takes the word of its caller.
        keep_payloads: whether the rows have the payloads; without them they are smaller.
    """

    def __init__(
        self,
        storage: Database,
        consumer_name: str,
        *,
        metrics: InboxMetrics | None = None,
        duplicates_within: float | None = None,
        keep_payloads: bool = True,
    ) -> None:
        if not 0 < len(consumer_name) <= _MOST_TEXT:
            raise SettingsError(f"consumer_name {consumer_name!r}: give one of 1 to {_MOST_TEXT} characters")
        self.consumer_name = consumer_name
        self._storage = storage
        self._metrics = metrics
        self._duplicates_within = duplicates_within
        self._keep_payloads = keep_payloads

    async def process_idempotent(
        self,
        event_id: EventId,
        source_topic: str,
        event_type: str,
        payload: Any,
        handler: Handler[T],
        *,
        connection: Connection | None = None,
    ) -> T | None:
        """The handler's result; None for a duplicate, for which the handler is not called.

        What the handler raises rolls all back: the event is new when it comes again. An id is unique within
        its source: where several write to a topic, give source and id together (`Envelope.identity`).

        Arguments:
            event_id: text, a UUID, or bytes in UTF-8: the same id in each form.
            payload: what the handler gets. It is stored as it is if it is bytes or text, else as JSON.
            connection: of the caller: mark and handler are a part of the transaction that is open there, and
                roll back with it. It is counted as handled before that commits. None: one of the storage.

        Raises:
            MissingHeader, HeaderTooLong: there is no id, or one that is too long.
            DataError: an id or a payload cannot be kept.
            SettingsError: the handler is declared in another way.
            DatabaseUnavailable: no connection was to be had; nothing has happened.
        """

        async def handle(using: Connection, _events: Sequence[InboxEvent]) -> T:
            result: T = await call(handler, using, payload)
            return result

        event = InboxEvent(event_id, source_topic, event_type, payload)
        return await self.process_batch([event], handle, connection=connection)

    async def process_batch(
        self, events: Sequence[InboxEvent], handler: BatchHandler[T], *, connection: Connection | None = None
    ) -> T | None:
        """The handler's result for the events that are new, in one transaction with one insert; None when
        none is, and the handler is not called.

        What the handler raises rolls the whole batch back. The duration of each event is its share. Arguments
        and errors are those of `process_idempotent`.
        """
        if not events:
            return None
        events = _with_ids(events)
        async with self._transaction(connection) as using:
            new = await self.mark(using, events)
            if new:
                started = time.perf_counter()
                result: T = await call(handler, using, new)
                share = (time.perf_counter() - started) / len(new)
                ids = [event.event_id for event in new]
                await using.execute(_SQL["all_measured"], self.consumer_name, ids, share * 1000)
        self._count_duplicates(_without(events, new))
        if not new:
            return None
        self._count_processed(new, share)
        return result

    async def mark(self, connection: Connection, events: Sequence[InboxEvent]) -> list[InboxEvent]:
        """Mark events as handled in the transaction of the caller, who counts nothing and times nothing;
        returns those that are new, in their order. One that another transaction is handling is waited for.
        """
        events = _with_ids(events)
        stored = [self._stored(event) for event in events]
        if len(stored) == 1:
            row = await connection.fetchrow(_SQL["mark_one"], self.consumer_name, *stored[0])
            return list(events) if row else []
        columns = (list(column) for column in zip(*stored, strict=True))
        rows = await connection.fetch(_SQL["mark"], self.consumer_name, *columns)
        marked = {row["event_id"] for row in rows}
        new = []
        for event in events:
            if event.event_id in marked:
                marked.remove(event.event_id)  # a batch may have it twice
                new.append(event)
        return new

    async def cleanup_old_entries(self, older_than_days: float = 7, *, batch: int = CLEANUP_BATCH) -> int:
        """Forget what was handled so long ago; returns how many entries. Each batch is a transaction.

        Raises SettingsError when a duplicate may still come after so many days: it would be handled again.
        """
        self.require_retention(older_than_days)
        before = datetime.now(UTC) - timedelta(days=older_than_days)
        deleted, reached = 0, _FIRST_DAY
        while True:
            async with self._storage.acquire() as connection:
                row = await connection.fetchrow(_SQL["clean_up"], self.consumer_name, before, reached, batch)
            if row is None or not row["deleted"]:
                break
            deleted, reached = deleted + row["deleted"], row["reached"]
        return deleted

    def require_retention(self, days: float) -> None:
        """Raises SettingsError when entries of that age may still be needed."""
        if self._duplicates_within is None:
            return
        if days * DAY < self._duplicates_within:
            raise SettingsError(
                f"entries of consumer {self.consumer_name!r} are needed for {self._duplicates_within / DAY:g}"
                f" days, the retention of dead letters and the longest retry path: after {days:g} days a"
                " replay would be handled twice. Keep them longer, or dead letters shorter"
            )

    @asynccontextmanager
    async def _transaction(self, connection: Connection | None) -> AsyncIterator[Connection]:
        """One of the storage, or a part of the one that is open on the caller's connection."""
        if connection is None:
            async with self._storage.transaction() as own:
                yield own
        else:
            async with connection.transaction():
                yield connection

    def _stored(self, event: InboxEvent) -> tuple[str, str, str, bytes | None]:
        event_id = id_of(event.event_id)
        payload = payload_bytes(event_id, event.payload) if self._keep_payloads else None
        return event_id, _told(event.source_topic), _told(event.event_type), payload

    def _count_processed(self, events: Sequence[InboxEvent], seconds: float) -> None:
        if self._metrics is not None:
            for event in events:
                self._metrics.processed(self.consumer_name, event.event_type, seconds)

    def _count_duplicates(self, events: Sequence[InboxEvent]) -> None:
        if self._metrics is not None:
            for event in events:
                self._metrics.duplicate(self.consumer_name, event.event_type)


def _with_ids(events: Sequence[InboxEvent]) -> list[InboxEvent]:
    """With their ids as text."""
    return [event._replace(event_id=id_of(event.event_id)) for event in events]


def _without(events: Sequence[InboxEvent], new: Sequence[InboxEvent]) -> list[InboxEvent]:
    left = {event.event_id for event in new}
    duplicates = []
    for event in events:
        if event.event_id in left:
            left.remove(event.event_id)
        else:
            duplicates.append(event)
    return duplicates


def _told(text: str) -> str:
    """A text that is for people, as far as it can be stored: senders write what they like."""
    return text[:_MOST_TEXT].replace("\0", "\ufffd").encode(errors="replace").decode()
