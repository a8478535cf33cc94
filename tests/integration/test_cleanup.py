"""The cleanup in the background, on a real PostgreSQL."""

import asyncio
from dataclasses import replace

import pytest

from streams.errors import SettingsError
from streams.model.envelope import new_headers
from streams.postgres import Connection, ConsumerInbox, Database, InboxEvent, TransactionalInbox, migrate
from streams.postgres.cleanup import CleanedUp, DatabaseCleanup, Retention
from streams.settings import Settings
from streams.testing import FakeRecord, MemoryPublisher
from streams.units import DAY
from tests.postgres import IS_WAITING, of_database, until
from tests.relays import by_aggregate, new_outbox, publish, relaying

WEEK = Retention(outbox=7 * DAY, inbox=15 * DAY, duplicates_within=14 * DAY)
COLUMNS = (
    "position, id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source, ce_time,"
    " ce_correlationid, schema_fingerprint, created_at"
)
OLD_ROW = (
    "UPDATE outbox SET published_at = now() - interval '8 days', created_at = now() - interval '8 days'"
    " WHERE id = $1"
)


async def fill(database: Database) -> None:
    """An old published row, a young one, one that waits, and an archived one; old and young entries."""
    async with database.acquire() as connection:
        await publish(new_outbox(), connection, *(("o", number) for number in range(4)))
        await connection.execute(OLD_ROW, "o:0")
        await connection.execute("UPDATE outbox SET published_at = now() WHERE id = 'o:1'")
        waits = "UPDATE outbox SET created_at = now() - interval '30 days' WHERE id = 'o:2'"
        await connection.execute(waits)
        await connection.execute(
            f"INSERT INTO outbox_archive ({COLUMNS}, published_at)"
            f" SELECT {COLUMNS}, now() - interval '8 days' FROM outbox WHERE id = 'o:3'"
        )

    async def nothing(connection: object, new: object) -> None:
        pass

    for consumer in ("mailer", "projection"):
        events = [InboxEvent(name, "t", "t", b"") for name in ("old", "young")]
        await ConsumerInbox(database, consumer).process_batch(events, nothing)
    async with database.transaction() as connection:
        for name in ("old", "young", "unhandled"):
            headers = new_headers("t", "k", source="s", time=0.0, message_id=name)
            await TransactionalInbox("post").receive(connection, FakeRecord("t", 0, 0, 0, b"k", b"", headers))
    old = "now() - interval '16 days'"
    for change in (
        f"UPDATE consumer_inbox SET consumed_at = {old} WHERE event_id = 'old'",
        "UPDATE transactional_inbox SET processed_at = now() WHERE message_id = 'young'",
        f"UPDATE transactional_inbox SET processed_at = {old} WHERE message_id = 'old'",
    ):
        await database.pool.execute(change)


async def column(database: Database, query: str) -> list[str]:
    return [row[0] for row in await database.pool.fetch(query)]


@pytest.mark.promise("outbox-cleanup")
async def test_what_is_older_than_its_retention_goes_and_nothing_else(database: Database) -> None:
    await fill(database)
    cleanup = DatabaseCleanup(database, WEEK)
    assert await cleanup.clean_up() == CleanedUp(2, {"mailer": 1, "projection": 1, "post": 1})
    assert await column(database, "SELECT id FROM outbox ORDER BY position") == ["o:1", "o:2", "o:3"]
    assert await column(database, "SELECT id FROM outbox_archive") == []
    assert await column(database, "SELECT event_id FROM consumer_inbox") == ["young", "young"]
    assert await column(database, "SELECT message_id FROM transactional_inbox ORDER BY id") == [
        "young",
        "unhandled",
    ]
    assert await cleanup.clean_up() == CleanedUp(0, {"mailer": 0, "projection": 0, "post": 0})


@pytest.mark.promise("outbox-cleanup")
async def test_cleaning_beside_a_relay_loses_and_doubles_nothing(database: Database) -> None:
    publisher, outbox = MemoryPublisher(), new_outbox()
    orders = [f"o-{number}" for number in range(10)]
    cleanup = DatabaseCleanup(database, replace(WEEK, outbox=0.0))
    cleaning = asyncio.create_task(cleanup.run(0.01))
    async with relaying(database.url, publisher), database.acquire() as connection:
        for number in range(40):
            await publish(outbox, connection, *((order, number) for order in orders))
        await until(database, "SELECT count(*) = 0 FROM outbox")
    cleaning.cancel()
    await asyncio.wait([cleaning])
    assert by_aggregate(publisher.written) == {order: list(range(40)) for order in orders}


@pytest.mark.promise("outbox-cleanup")
async def test_of_two_that_clean_at_once_one_does(database: Database, connection: Connection) -> None:
    await publish(new_outbox(), connection, ("o", 0))
    await connection.execute(OLD_ROW, "o:0")
    async with connection.transaction():
        await connection.execute("SELECT FROM outbox FOR UPDATE")
        first = asyncio.create_task(DatabaseCleanup(database, WEEK).clean_up())
        await until(database, IS_WAITING)
        assert await DatabaseCleanup(database, WEEK).clean_up() is None
    assert await first == CleanedUp(1, {})
    assert await DatabaseCleanup(database, WEEK).clean_up() == CleanedUp(0, {})


@pytest.mark.promise("outbox-cleanup")
async def test_an_inbox_that_would_forget_too_early_is_refused(database: Database) -> None:
    await fill(database)
    with pytest.raises(SettingsError, match="a replay would be handled twice"):
        await DatabaseCleanup(database, replace(WEEK, inbox=13 * DAY)).clean_up()
    assert await column(database, "SELECT event_id FROM consumer_inbox WHERE event_id = 'old'") != []
    assert await DatabaseCleanup(database, WEEK).clean_up() is not None


async def test_it_goes_on_when_the_tables_come_later(postgres_server: str, database: Database) -> None:
    name = "cleaned_later"
    await database.pool.execute(f"CREATE DATABASE {name}")
    async with Database(of_database(postgres_server, name)) as later:
        cleaning = asyncio.create_task(DatabaseCleanup(later, WEEK).run(0.05))
        async with later.acquire() as connection:
            await migrate(connection)
            await publish(new_outbox(), connection, ("o", 0))
            await connection.execute(OLD_ROW, "o:0")
        await until(later, "SELECT count(*) = 0 FROM outbox")
        cleaning.cancel()
        await asyncio.wait([cleaning])
    await database.pool.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_the_settings_say_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, days in (("OUTBOX_RETENTION", 3), ("INBOX_RETENTION", 20), ("DEAD_LETTER_RETENTION", 10)):
        monkeypatch.setenv(f"STEADFAUST_{name}_DAYS", str(days))
    found = Retention.of(Settings())
    assert (found.outbox, found.inbox) == (3 * DAY, 20 * DAY)
    assert found.duplicates_within > 10 * DAY
