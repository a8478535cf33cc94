"""A queue of work in PostgreSQL: jobs are enqueued in the transaction of the caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from streams.errors import SettingsError
from streams.model.codecs import Codec, MakeCodec, json_without_schema
from streams.model.envelope import CAUSATION, FINGERPRINT, TRACEPARENT, new_headers
from streams.model.message import Message
from streams.postgres.database import Connection
from streams.postgres.queue.job import Job, stored_headers
from streams.postgres.queue.kinds import Kind, kind_of, reply_topic_of, saga_of, status_of
from streams.postgres.statements import statements

SQL = statements(Path(__file__).with_name("queue.sql"))
#: The action of a queue with one handler, where a job names none.
HANDLE = "handle"
_LONGEST_NAME = 200

M = TypeVar("M", bound=Message)


class NewJob(NamedTuple):
    """A job to be enqueued, with the columns of its row; `delay` in seconds."""

    topic: str
    partition: int | None
    key: str | None
    kind: str
    action: str
    payload: bytes
    headers: str
    saga_id: str | None
    reply_topic: str | None
    status_code: str | None
    delay: float


class Queue:
    """A queue by its name; `QueueWorker` works on it.

    Arguments:
        name: the same for all who enqueue and work.
        ordered: whether jobs of one key (`Message.key`) are done one after the other, in the order of their
            numbers; one that waits for its next try, or has failed, holds those behind it back.
        codecs: makes the codec of a message class: JSON, or what the application writes to Kafka.
        source: the CloudEvents source; the queue's name unless given.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        name: str,
        *,
        ordered: bool = False,
        codecs: MakeCodec = json_without_schema,
        source: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        if not 0 < len(name) <= _LONGEST_NAME:
            raise SettingsError(f"queue {name!r}: give a name of 1 to {_LONGEST_NAME} characters")
        self.name = name
        self.ordered = ordered
        self._source = source or name
        self._make_codec = codecs
        self._codecs: dict[type[Message], Codec[Any]] = {}
        self._now = now

    async def enqueue(
        self,
        connection: Connection,
        message: Message,
        *,
        action: str = HANDLE,
        delay: float = 0.0,
        partition: int | None = None,
        message_id: str = "",
        correlation_id: str = "",
        causation_id: str = "",
        traceparent: str = "",
    ) -> int:
        """Put a message into the queue when the connection's transaction commits; returns the job's number.

        Arguments:
            action: which handler of the worker is to do it.
            delay: seconds before which it is not done; in an ordered queue later jobs of its key wait, too.
            partition: of the message's topic, where that is known.
            message_id: its own id; a new one unless given.
            correlation_id: the business operation; the message's own id, unless given.
            causation_id: of the message that this one answers.
            traceparent: of the trace that it belongs to (W3C).

        Raises Unencodable before anything is written.
        """
        job = self.job(
            message,
            action=action,
            delay=delay,
            partition=partition,
            message_id=message_id,
            correlation_id=correlation_id,
            causation_id=causation_id,
            traceparent=traceparent,
        )
        return (await self.enqueue_jobs(connection, [job]))[0]

    async def enqueue_many(
        self, connection: Connection, messages: Sequence[Message], *, action: str = HANDLE
    ) -> list[int]:
        """Put messages into the queue, in their order, by one statement."""
        return await self.enqueue_jobs(connection, [self.job(each, action=action) for each in messages])

    async def enqueue_jobs(self, connection: Connection, jobs: Sequence[NewJob]) -> list[int]:
        """Put what `job` has made into the queue, in its order, by one statement; returns the numbers."""
        if not jobs:
            return []
        columns = (list(column) for column in zip(*jobs, strict=True))
        rows = await connection.fetch(SQL["enqueue"], self.name, *columns)
        return [row["id"] for row in rows]

    def job(
        self,
        message: Message,
        *,
        action: str = HANDLE,
        delay: float = 0.0,
        partition: int | None = None,
        message_id: str = "",
        correlation_id: str = "",
        causation_id: str = "",
        traceparent: str = "",
    ) -> NewJob:
        """A job as `enqueue` writes it. Raises Unencodable."""
        topic, codec = message.TOPIC, self._codec(type(message))
        headers = new_headers(
            topic,
            message.key,
            source=self._source,
            time=self._now(),
            message_id=message_id,
            correlation_id=correlation_id,
        )
        headers.append((FINGERPRINT, codec.fingerprint))
        if causation_id:
            headers.append((CAUSATION, causation_id.encode()))
        if traceparent:
            headers.append((TRACEPARENT, traceparent.encode()))
        return NewJob(
            topic,
            partition,
            message.key if self.ordered else None,
            kind_of(message),
            action,
            codec.encode(message),
            stored_headers(headers),
            saga_of(message),
            reply_topic_of(message),
            status_of(message),
            delay,
        )

    def received(self, record: Any, *, action: str = HANDLE, kind: Kind = Kind.EVENT) -> NewJob:
        """A record of Kafka as a job, bytes and headers untouched: received now, handled later."""
        key = (record.key or b"").decode("utf-8", "replace").replace("\0", "\ufffd") or None
        return NewJob(
            record.topic,
            record.partition,
            key if self.ordered else None,
            kind,
            action,
            record.value or b"",
            stored_headers(record.headers),
            None,
            None,
            None,
            0.0,
        )

    def decode(self, job: Job, kind: type[M]) -> M:
        """A job's message, as one of this class. Raises Undecodable, or UnknownSchema."""
        fingerprint = dict(job.headers).get(FINGERPRINT)
        message: M = self._codec(kind).decode(job.payload, fingerprint)
        return message

    def _codec(self, kind: type[Message]) -> Codec[Any]:
        return self._codecs.get(kind) or self._codecs.setdefault(kind, self._make_codec(kind, kind.TOPIC))
