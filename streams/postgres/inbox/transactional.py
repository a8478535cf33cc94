"""The transactional inbox: a message is stored first, with its id, and handled later.

What came before is dropped when it is stored. A queue does the rest: tries, pauses, leases, order by key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from streams.model.envelope import Envelope
from streams.postgres.database import Connection, Database
from streams.postgres.inbox.events import require_id
from streams.postgres.inbox.inbox import CLEANUP_BATCH
from streams.postgres.queue import Job, Queue, QueueMetrics, QueueOptions, QueueWorker
from streams.postgres.statements import statements

_SQL = statements(Path(__file__).with_name("transactional.sql"))


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message that is to be handled.

    Attributes:
        id: its number in the order in which messages were stored.
        message_id: its own id, unique within the inbox.
        payload: its bytes.
        received_at: when it was stored.
        job: the queue's job of it, which has topic, key, headers and tries.
    """

    id: int
    message_id: str
    payload: bytes
    received_at: datetime
    job: Job


#: Handles a message: what it writes by this connection commits with `processed_at`, or not at all.
ReceivedHandler = Callable[[Connection, ReceivedMessage], Awaitable[None]]


class TransactionalInbox:
    """Messages of one consumer, stored before they are handled.

    Arguments:
        name: the same for all who receive and handle; its queue has it, too.
        ordered: whether messages of one key are handled in their order.
    """

    def __init__(self, name: str, *, ordered: bool = False) -> None:
        self.queue = Queue(name, ordered=ordered)

    async def receive(self, connection: Connection, record: Any) -> bool:
        """Store a record of Kafka in the caller's transaction; False when its id is there already.

        Raises MissingHeader, HeaderTooLong or DataError for an id that cannot be kept.
        """
        message_id = Envelope(record).id
        require_id(message_id)
        number = await connection.fetchval(_SQL["receive"], self.queue.name, message_id, record.value or b"")
        if number is None:
            return False
        job = self.queue.received(record)._replace(payload=b"%d" % number)  # the payload is stored once
        await self.queue.enqueue_jobs(connection, [job])
        return True

    def worker(
        self,
        database: Database,
        handler: ReceivedHandler,
        *,
        options: QueueOptions | None = None,
        metrics: QueueMetrics | None = None,
    ) -> QueueWorker:
        """Handles what was received; see QueueWorker."""

        async def handle(connection: Connection, job: Job) -> None:
            row = await connection.fetchrow(_SQL["process"], int(job.payload))
            if row is not None:  # else it was cleaned up, or another worker has handled it
                await handler(connection, _message(row, job))

        return QueueWorker(database, self.queue, handle, options=options, metrics=metrics)

    async def cleanup_processed(self, database: Database, older_than_days: float = 15) -> int:
        """Forget what was handled so long ago; returns how many messages. What comes again after that is
        handled again.
        """
        before, deleted = datetime.now(UTC) - timedelta(days=older_than_days), 0
        while True:
            async with database.acquire() as connection:
                some: int = await connection.fetchval(
                    _SQL["clean_up"], self.queue.name, before, CLEANUP_BATCH
                )
            deleted += some
            if some < CLEANUP_BATCH:
                return deleted


def _message(row: Any, job: Job) -> ReceivedMessage:
    return ReceivedMessage(row["id"], row["message_id"], row["payload"], row["received_at"], job)
