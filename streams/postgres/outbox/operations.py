"""Operations on the outbox besides publishing: state, lists, publishing again, cleanup."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from asyncpg import UniqueViolationError

from streams.postgres.database import Connection
from streams.postgres.errors import MessageIdTaken
from streams.postgres.outbox import archive
from streams.postgres.statements import statements
from streams.units import DAY

_SQL = statements("outbox/outbox.sql")
#: Rows of a step of the cleanup, which is a transaction of its own.
STEP = 10_000


class OutboxStatus(NamedTuple):
    """State of the outbox.

    Attributes:
        unpublished: rows that wait, counted up to a million.
        failed: of those, the ones that a broker has refused.
        oldest_seconds: the age of the oldest of them; 0 when there is none.
        table_bytes: what the table and its indexes take on the disk.
    """

    unpublished: int
    failed: int
    oldest_seconds: float
    table_bytes: int


async def status(connection: Connection) -> OutboxStatus:
    """State of the outbox."""
    row = await connection.fetchrow(_SQL["status"])
    assert row is not None
    return OutboxStatus(*row)


async def listed(
    connection: Connection,
    state: str = "waiting",
    *,
    topic: str = "",
    aggregate: str = "",
    after: int = 0,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Rows that are waiting, failed, published or archived, in the order of their positions, without their
    payloads. The archive is read as a whole.
    """
    if state == "archived":
        rows = await connection.fetch(_SQL["list_archive"], topic, aggregate, after, limit)
    else:
        rows = await connection.fetch(_SQL["list"], state, topic, aggregate, after, limit)
    return [dict(row) for row in rows]


async def shown(connection: Connection, message_id: str) -> dict[str, Any] | None:
    """All of a row, of the archive too; None when there is none of this id."""
    row = await connection.fetchrow(_SQL["show"], message_id)
    row = row or await connection.fetchrow(_SQL["show_archived"], message_id)
    return None if row is None else dict(row)


async def rows_of(connection: Connection, published: Mapping[str, float]) -> list[dict[str, Any]]:
    """The rows of ids, without their payloads; of the archive those that were published about the time that
    is beside the id, in epoch seconds.
    """
    rows = [dict(row) for row in await connection.fetch(_SQL["rows"], list(published))]
    missing = sorted(published.keys() - {row["id"] for row in rows})
    if missing:
        times = [datetime.fromtimestamp(published[each], UTC) for each in missing]
        rows += [dict(row) for row in await connection.fetch(_SQL["rows_archived"], missing, times)]
    return rows


async def republish(
    connection: Connection, ids: Sequence[str] = (), *, failed: bool = False, dry_run: bool = False
) -> list[dict[str, Any]]:
    """Have rows published again, at once: those of these ids, archived ones too, or all that were refused.
    Returns them.

    One that was published comes a second time under the same id, behind later ones of its aggregate. Raises
    MessageIdTaken when a message of an archived one's id is published at this moment.
    """
    async with connection.transaction():
        rows = [dict(row) for row in await connection.fetch(_SQL["again"], list(ids), failed)]
        missing = sorted(set(ids) - {row["id"] for row in rows})
        archived = await connection.fetch(_SQL["again_archived"], missing) if missing else []
        if not dry_run:
            positions = [row["position"] for row in rows]
            await connection.execute(_SQL["republish"], positions)
            # Archived ones first: they were published before.
            try:
                await connection.execute(_SQL["republish_archived"], [row["id"] for row in archived])
            except UniqueViolationError as error:
                raise MessageIdTaken(f"the outbox has a message of this id by now: {error.detail}") from error
            await connection.execute(_SQL["republish_published"], positions)
            await connection.execute(_SQL["wake"])
    return [dict(row) for row in archived] + rows


async def referenced(connection: Connection) -> list[str]:
    """The objects that rows refer to, `s3://bucket/name`, whether they wait, were published or archived; none
    when the database has no outbox.
    """
    if await connection.fetchval("SELECT to_regclass('outbox') IS NULL"):
        return []
    return [row["ce_dataref"] for row in await connection.fetch(_SQL["references"])]


async def erase(connection: Connection, aggregate: str, *, dry_run: bool = False) -> tuple[int, list[str]]:
    """Remove all rows of an aggregate id, those that wait and archived ones, too. Returns how many, and the
    objects that they refer to, `s3://bucket/name`; nothing when the database has no outbox.
    """
    if await connection.fetchval("SELECT to_regclass('outbox') IS NULL"):
        return 0, []
    async with connection.transaction():
        found = await connection.fetchrow(_SQL["of_aggregate"], aggregate)
        assert found is not None
        if not dry_run:
            await connection.execute(_SQL["erase"], aggregate)
            await connection.execute(_SQL["erase_archived"], aggregate)
    return found["rows"], list(found["objects"])


async def removable(connection: Connection, older_than: float) -> int:
    """How many rows `cleanup` would remove."""
    rows = int(await connection.fetchval(_SQL["removable"], older_than))
    return rows + await archive.removable(connection, _ago(older_than))


async def cleanup(connection: Connection, older_than: float = 7 * DAY, *, step: int = STEP) -> int:
    """Remove rows that were published over so many seconds ago, archived ones too; returns how many.

    In steps of few rows, beside relays and writers: nothing is locked but the rows that go. Of the archive
    whole days go, when the last of their rows is so old.
    """
    removed, behind = 0, 0
    while True:
        row = await connection.fetchrow(_SQL["cleanup"], behind, step, older_than)
        assert row is not None
        removed += int(row["removed"])
        if row["is_young"]:
            break
        behind = row["last"]
        await asyncio.sleep(archive.REST)
    return removed + await archive.clean_up(connection, _ago(older_than), step)


def _ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)
