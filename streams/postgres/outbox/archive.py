"""The archive of the outbox, by days in UTC: days that are over go as a whole."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import structlog
from asyncpg import LockNotAvailableError

from streams.postgres.database import Connection
from streams.postgres.statements import statements

log = structlog.get_logger(__name__)

_SQL = statements("outbox/archive.sql")
_DAY = timedelta(days=1)
#: Days that are made ahead: a relay that archives finds its day, also when no cleanup runs for so long.
AHEAD = 3
#: What was archived before there were days.
_BEFORE = "outbox_archive_before"
#: How long relays may have to wait behind a change of the partitions; it is left for the next cleanup then.
_PATIENCE = "2s"
#: Between two steps, in seconds: others have their turn, and vacuum.
REST = 0.05


async def make_days(connection: Connection, now: datetime) -> list[str]:
    """Make the days that come, as far as they are not there; returns their names."""
    ends = [row["until"] for row in await connection.fetch(_SQL["days"])]
    reached = max(ends, default=datetime.min.replace(tzinfo=UTC))
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    made = []
    for begin in (today + number * _DAY for number in range(AHEAD)):
        end = begin + _DAY
        # A day whose partition was made too late has rows in the default partition, and stays there.
        if begin < reached or await connection.fetchval(_SQL["has_rest"], begin, end):
            continue
        name = f"outbox_archive_{begin:%Y%m%d}"
        bounds = f"FROM ('{begin.isoformat()}') TO ('{end.isoformat()}')"
        if not await _change(
            connection, f"CREATE TABLE {name} PARTITION OF outbox_archive FOR VALUES {bounds}"
        ):
            break
        made.append(name)
    return made


async def drop_days(connection: Connection, before: datetime) -> int:
    """Drop the days that had ended by then; returns how many rows went with them."""
    dropped = 0
    for row in await connection.fetch(_SQL["days"]):
        if row["name"] == _BEFORE or row["until"] > before:
            continue
        rows = int(await connection.fetchval(f'SELECT count(*) FROM "{row["name"]}"'))
        if not await _change(connection, f'DROP TABLE "{row["name"]}"'):
            break
        dropped += rows
    return dropped


async def clean_up(connection: Connection, before: datetime, step: int) -> int:
    """Make the days that come, drop those that had ended by then, and delete what is older and in no day, in
    steps of few rows; returns how many rows went.
    """
    await make_days(connection, datetime.now(UTC))
    removed = await drop_days(connection, before)
    while gone := await connection.fetchval(_SQL["cleanup"], before, step):
        removed += int(gone)
        await asyncio.sleep(REST)
    return removed


async def removable(connection: Connection, before: datetime) -> int:
    """How many rows `clean_up` would remove."""
    return int(await connection.fetchval(_SQL["removable"], before))


async def _change(connection: Connection, statement: str) -> bool:
    """False when another session holds the archive for longer than relays should wait."""
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
            await connection.execute(statement)
    except LockNotAvailableError as error:
        log.warning("archive_in_use", error=str(error), action="the next cleanup tries again")
        return False
    return True
