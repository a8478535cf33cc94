"""A job of a queue: a message with its envelope, and how often it was tried."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from streams.model.envelope import Envelope
from streams.ports import Headers


class QueueRecord(NamedTuple):
    """A job in the form of a record of Kafka."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class Job:
    """Work that a handler is to do.

    Attributes:
        id: its number; later jobs of a queue have higher ones.
        topic: the topic of its message, which is its type.
        partition: of that topic, where the sender knew it.
        key: jobs of one key are done in order; None: no order.
        kind: event, command or reply.
        action: which handler of the queue is to do it.
        payload: the message's bytes.
        headers: those of the message, as on Kafka.
        retry: tries that have failed.
        created, updated: when it was enqueued, and when a try failed or an operator changed it.
    """

    id: int
    topic: str
    partition: int | None
    key: str | None
    kind: str
    action: str
    payload: bytes
    headers: Headers
    retry: int
    created: datetime
    updated: datetime

    @property
    def record(self) -> QueueRecord:
        """The job as a record; its offset is the job's id."""
        partition = -1 if self.partition is None else self.partition
        key = None if self.key is None else self.key.encode()
        milliseconds = int(self.created.timestamp() * 1000)
        return QueueRecord(self.topic, partition, self.id, milliseconds, key, self.payload, self.headers)

    @property
    def envelope(self) -> Envelope:
        """Ids, type, correlation and causation, as of a message from Kafka. Raises MissingHeader."""
        return Envelope(self.record)

    def log_ids(self) -> dict[str, str]:
        """The ids that name the job in log lines of its handler."""
        return {"job": str(self.id), "action": self.action}


def job_of(row: Any) -> Job:
    """The job of a row of the table."""
    return Job(
        row["id"],
        row["topic"],
        row["partition"],
        row["key"],
        row["kind"],
        row["action"],
        row["payload"],
        headers_of(row["headers"]),
        row["retry"],
        row["created"],
        row["updated"],
    )


def stored_headers(headers: Headers) -> str:
    """Headers as the table has them: JSON, each byte a character, since values may be any bytes."""
    return json.dumps([(name, value.decode("latin-1")) for name, value in headers])


def headers_of(stored: str) -> list[tuple[str, bytes]]:
    """The headers that were given to `stored_headers`."""
    return [(name, value.encode("latin-1")) for name, value in json.loads(stored)]
