"""PostgreSQL: what a service keeps there, and how it crosses to Kafka and back without loss or doubles."""

from __future__ import annotations

from streams.postgres.database import Connection, Database, Pool
from streams.postgres.migrations import LIBRARY, MigrationSet, migrate

__all__ = ["LIBRARY", "Connection", "Database", "MigrationSet", "Pool", "migrate"]
