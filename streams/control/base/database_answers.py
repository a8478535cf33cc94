"""Answers about the database edge: outbox, inboxes, queues."""

from __future__ import annotations

import msgspec


class WaitingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the outbox that waits. Times are RFC 3339; `retry_at` is empty unless a broker refused it."""

    id: str
    topic: str
    aggregate: str
    created_at: str
    attempts: int
    error: str
    retry_at: str


class OutboxAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """State of the outbox.

    Attributes:
        relay: which kind of relay owns it: poll or cdc; empty: none so far.
        unpublished: rows that wait, counted up to a million; `failed` of them were refused by a broker.
        oldest_seconds: the age of the oldest of them.
        slot: the state of the replication slot in words, with its warning; empty: there is none.
        waiting: the first of them, the refused ones before the others.
    """

    relay: str
    unpublished: int
    failed: int
    oldest_seconds: float
    table_bytes: int
    slot: str
    slot_warning: str
    waiting: list[WaitingRow]


class QueueAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of a queue by their state, and seconds that the oldest ready one has waited."""

    queue: str
    jobs: dict[str, int]
    oldest_ready: float


class InboxAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The consumers that keep what they have had in the database, and bytes of it."""

    consumers: list[str]
    stored: list[str]
    bytes: int


class DatabaseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """State of the database edge. What is not there is None; `missing` says why nothing is known: the
    database was `silent`, or the worker is set up without one.
    """

    missing: str = ""
    silent: bool = False
    outbox: OutboxAnswer | None = None
    queues: list[QueueAnswer] = []
    inbox: InboxAnswer | None = None


class OutboxRowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a message in an outbox. Times are RFC 3339, empty where there is none.

    Attributes:
        written: when its transaction began that wrote it; `published`: when a relay had Kafka's word.
        attempts: times that a broker has refused it, with the last `error`, and when it is tried again.
    """

    id: str
    topic: str
    aggregate: str
    written: str
    published: str
    attempts: int
    error: str
    retry_at: str


class OutboxRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of the outbox by their ids; `missing` says why nothing is known."""

    rows: list[OutboxRowAnswer] = []
    missing: str = ""
