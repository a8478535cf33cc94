"""PostgreSQL: what a service keeps there, and how it crosses to Kafka and back without loss or doubles."""

from __future__ import annotations

from streams.postgres.database import Connection, Database, Pool
from streams.postgres.inbox import ConsumerInbox, InboxEvent
from streams.postgres.inbox_metrics import InboxMetrics
from streams.postgres.migrations import LIBRARY, MigrationSet, migrate
from streams.postgres.outbox import Outbox, OutboxTransaction

__all__ = [
    "LIBRARY",
    "Connection",
    "ConsumerInbox",
    "Database",
    "InboxEvent",
    "InboxMetrics",
    "MigrationSet",
    "Outbox",
    "OutboxTransaction",
    "Pool",
    "migrate",
]
