"""How large an inbox is, how it grows, and what its oldest entry is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from streams.postgres.database import Connection
from streams.postgres.statements import statements

_SQL = statements(Path(__file__).with_name("inbox.sql"))
_TRANSACTIONAL = statements(Path(__file__).with_name("transactional.sql"))


class ConsumerStatus(NamedTuple):
    """The entries of one consumer; times in milliseconds, None without entries."""

    consumer_name: str
    rows: int
    last_hour: int
    last_day: int
    oldest: datetime | None
    mean_ms: float | None
    p99_ms: float | None


class Size(NamedTuple):
    """Bytes of the table and of its indexes, of all consumers."""

    table_bytes: int
    index_bytes: int


async def consumers(connection: Connection) -> list[str]:
    """Who has entries, in the order of their names."""
    return [row["consumer_name"] for row in await connection.fetch(_SQL["consumers"])]


async def transactional_inboxes(connection: Connection) -> list[str]:
    """The transactional inboxes that have messages, in the order of their names."""
    return [row["inbox"] for row in await connection.fetch(_TRANSACTIONAL["inboxes"])]


async def standing(connection: Connection, consumer_name: str) -> ConsumerStatus:
    """Rows and growth of one consumer: all of its entries are read."""
    row = await connection.fetchrow(_SQL["standing"], consumer_name)
    assert row is not None
    return ConsumerStatus(consumer_name, *row.values())


async def size(connection: Connection) -> Size:
    """The size of the inbox on the disk."""
    row = await connection.fetchrow(_SQL["size"])
    assert row is not None
    return Size(*row.values())


async def count_old(connection: Connection, consumer_name: str, days: float) -> int:
    """How many entries a cleanup would delete."""
    before = datetime.now(UTC) - timedelta(days=days)
    found: int = await connection.fetchval(_SQL["count_old"], consumer_name, before)
    return found
