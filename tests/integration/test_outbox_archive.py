"""The archive of the outbox by days, on a real PostgreSQL."""

import asyncio
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from streams.postgres import LIBRARY, Connection, Database, MigrationSet, migrate
from streams.postgres.outbox import archive
from streams.postgres.outbox.operations import cleanup, removable
from streams.postgres.relay import After
from streams.testing import MemoryPublisher
from streams.units import DAY
from tests.postgres import of_database
from tests.relays import QUICK, by_aggregate, drained, new_outbox, publish, relaying

TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
WEEK = timedelta(days=7)


def named(day: datetime) -> str:
    return f"outbox_archive_{day:%Y%m%d}"


async def archived(connection: Connection, position: int, published_at: datetime) -> str:
    """Archive a row; the partition that it went to."""
    insert = (
        "INSERT INTO outbox_archive (position, id, aggregate_type, aggregate_id, event_type, topic, payload,"
        " ce_source, ce_time, ce_correlationid, schema_fingerprint, published_at)"
        " VALUES ($1, $1::bigint::text, 'a', 'b', 't', 't', '', 's', '', '', '', $2)"
        " RETURNING tableoid::regclass::text"
    )
    return str(await connection.fetchval(insert, position, published_at))


async def positions(connection: Connection) -> list[int]:
    rows = await connection.fetch("SELECT position FROM outbox_archive ORDER BY position")
    return [row["position"] for row in rows]


@pytest.mark.promise("outbox-archive")
async def test_what_was_archived_before_days_existed_stays(
    postgres_server: str, database: Database, tmp_path: Path
) -> None:
    for number, path in enumerate(sorted(LIBRARY.folder.glob("*.sql"))):
        if number < 5:
            shutil.copy(path, tmp_path)
    await database.pool.execute("CREATE DATABASE archived_before")
    async with Database(of_database(postgres_server, "archived_before")) as old, old.acquire() as connection:
        await migrate(connection, [MigrationSet(LIBRARY.name, tmp_path)])
        await archived(connection, 1, TODAY)
        file = await connection.fetchval("SELECT pg_relation_filenode('outbox_archive')")
        await migrate(connection)
        assert await positions(connection) == [1]
        assert file == await connection.fetchval("SELECT pg_relation_filenode('outbox_archive_before')")
        assert await archived(connection, 2, TODAY) == "outbox_archive_before"
    await database.pool.execute("DROP DATABASE archived_before WITH (FORCE)")


async def test_days_are_made_ahead_and_rows_go_to_theirs(connection: Connection) -> None:
    # The migration has made some days by its own clock, which may be past midnight.
    later = TODAY + timedelta(days=3)
    assert named(later) in await archive.make_days(connection, later - timedelta(days=2))
    assert await archive.make_days(connection, later - timedelta(days=2)) == []
    assert await archived(connection, 1, later + timedelta(hours=23, minutes=59)) == named(later)
    assert await archived(connection, 2, later + timedelta(days=1)) == "outbox_archive_rest"


@pytest.mark.promise("outbox-archive")
async def test_a_day_made_too_late_is_kept_by_the_rest(connection: Connection) -> None:
    late = TODAY + timedelta(days=20)
    assert await archived(connection, 1, late) == "outbox_archive_rest"
    made = await archive.make_days(connection, late + timedelta(hours=12))
    assert made == [named(late + timedelta(days=1)), named(late + timedelta(days=2))]
    assert await positions(connection) == [1]


@pytest.mark.promise("outbox-archive")
async def test_whole_days_go_when_their_last_row_is_old_enough(connection: Connection) -> None:
    await archive.make_days(connection, TODAY + timedelta(days=10))
    day = TODAY + timedelta(days=10)
    await archived(connection, 1, TODAY - timedelta(days=30))
    for number, hours in enumerate((0, 23, 24, 47, 48), start=2):
        await archived(connection, number, day + timedelta(hours=hours))
    end = day + timedelta(days=1)
    assert await archive.removable(connection, end - timedelta(seconds=1)) == 1
    assert await archive.drop_days(connection, end - timedelta(seconds=1)) == 0
    assert await archive.removable(connection, end + timedelta(hours=23)) == 3
    assert await archive.drop_days(connection, end + timedelta(hours=23)) == 2
    assert await positions(connection) == [1, 4, 5, 6]
    assert await archive.drop_days(connection, TODAY + timedelta(days=90)) == 3
    assert await positions(connection) == [1]  # of no day: cleanup deletes it, in steps
    assert await removable(connection, 7 * DAY) == 1
    assert await cleanup(connection, 7 * DAY, step=1) == 1
    assert await positions(connection) == []


async def test_a_day_that_is_read_is_dropped_later(
    database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_PATIENCE", "100ms")
    day = TODAY + timedelta(days=10)
    await archive.make_days(connection, day)
    await archived(connection, 1, day)
    async with database.transaction() as reader:
        await reader.fetch("SELECT FROM outbox_archive")
        assert await archive.drop_days(connection, day + WEEK) == 0
    assert await archive.drop_days(connection, day + WEEK) == 1


@pytest.mark.promise("outbox-archive")
async def test_a_relay_archives_beside_cleanups_of_days(database: Database, connection: Connection) -> None:
    publisher, outbox = MemoryPublisher(), new_outbox()
    orders = [f"o-{number}" for number in range(5)]

    async def make_and_drop() -> None:
        async with database.acquire() as own:
            for number in range(3, 1000):
                await archive.make_days(own, TODAY + timedelta(days=number))
                await archive.drop_days(own, TODAY + timedelta(days=number))

    changing = asyncio.create_task(make_and_drop())
    async with relaying(database.url, publisher, replace(QUICK, after=After.ARCHIVE)):
        for number in range(20):
            await publish(outbox, connection, *((order, number) for order in orders))
        await drained(database)
    changing.cancel()
    await asyncio.wait([changing])
    assert by_aggregate(publisher.written) == {order: list(range(20)) for order in orders}
    assert len(await positions(connection)) == 100
