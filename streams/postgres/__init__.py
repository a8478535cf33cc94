"""PostgreSQL: what a service keeps there, and how it crosses to Kafka and back without loss or doubles."""

from __future__ import annotations

from streams.errors import missing_extra

try:
    from streams.postgres.database import Connection, Database, Pool
    from streams.postgres.inbox import ConsumerInbox, InboxEvent, InboxMetrics, TransactionalInbox
    from streams.postgres.migrations import LIBRARY, MigrationSet, migrate
    from streams.postgres.outbox import Outbox, OutboxTransaction
    from streams.postgres.queue import Job, Queue, QueueMetrics, QueueOptions, QueueWorker
except ModuleNotFoundError as error:
    raise missing_extra("postgres", "Outbox, inbox and queues in PostgreSQL", error) from error

__all__ = [
    "LIBRARY",
    "Connection",
    "ConsumerInbox",
    "Database",
    "InboxEvent",
    "InboxMetrics",
    "Job",
    "MigrationSet",
    "Outbox",
    "OutboxTransaction",
    "Pool",
    "Queue",
    "QueueMetrics",
    "QueueOptions",
    "QueueWorker",
    "TransactionalInbox",
    "migrate",
]
