"""The outbox on a real PostgreSQL: what commits with what, and who is told."""

from contextlib import suppress

import pytest

from streams.postgres import Connection, Database, Outbox
from streams.postgres.database import connect
from tests.postgres import connected
from tests.relays import Step, new_outbox
from tests.waiting import eventually_async


@pytest.fixture
async def database(database: Database) -> Database:
    await database.pool.execute("CREATE TABLE orders (id text PRIMARY KEY)")
    return database


@pytest.fixture
def outbox() -> Outbox:
    return new_outbox()


async def counts(database: Database, *tables: str) -> list[int]:
    return [await database.pool.fetchval(f"SELECT count(*) FROM {table}") for table in tables]


@pytest.mark.promise("outbox-atomic")
async def test_a_row_and_its_message_commit_together(
    database: Database, connection: Connection, outbox: Outbox
) -> None:
    async with outbox.transaction(connection) as tx:
        await connection.execute("INSERT INTO orders VALUES ('o-1')")
        tx.publish(Step(order="o-1", number=1))
    assert await counts(database, "orders", "outbox") == [1, 1]


@pytest.mark.promise("outbox-atomic")
async def test_a_message_goes_with_the_transaction_around_it(database: Database, outbox: Outbox) -> None:
    with suppress(KeyError):
        async with database.transaction() as connection:
            async with outbox.transaction(connection) as tx:
                await connection.execute("INSERT INTO orders VALUES ('o-1')")
                tx.publish(Step(order="o-1", number=1))
            raise KeyError("later, in the caller's transaction")
    assert await counts(database, "orders", "outbox", "outbox_schemas") == [0, 0, 0]


async def test_the_schema_is_stored_once_with_the_first_message(database: Database, outbox: Outbox) -> None:
    for number in range(2):
        async with database.acquire() as connection, outbox.transaction(connection) as tx:
            tx.publish(Step(order=f"o-{number}", number=1))
    codec = outbox.codec(Step)
    async with database.acquire() as connection:
        rows = await connection.fetch("SELECT fingerprint, schema FROM outbox_schemas")
    assert [tuple(row) for row in rows] == [(codec.fingerprint.decode(), codec.schema)]


async def test_a_relay_that_sleeps_is_told_once_however_many_publish(
    connection: Connection, outbox: Outbox, postgres_url: str
) -> None:
    told: list[str] = []
    ear = await connect(postgres_url)
    await ear.add_listener("outbox", lambda *_: told.append("told"))
    await ear.add_listener("end", lambda *_: told.append("end"))
    for _ in range(2):  # asleep twice
        await connection.execute("SELECT setval('outbox_wakeup', 1, false)")
        for number in range(20):
            async with outbox.transaction(connection) as tx:
                tx.publish(Step(order=f"o-{number}", number=1))
    await connection.execute("SELECT pg_notify('end', '')")
    await eventually_async(lambda: "end" in told, "the last notification")
    await ear.close()
    assert told == ["told", "told", "end"]


@pytest.mark.promise("postgres-failover")
@pytest.mark.parametrize("trouble", ["a sequence that is gone", "a right that is missing"])
async def test_a_failed_wake_up_fails_no_business_transaction(
    postgres_url: str, outbox: Outbox, trouble: str
) -> None:
    told: list[str] = []
    async with connected(postgres_url) as connection:
        connection.add_log_listener(lambda _, message: told.append(str(message)))
        if trouble == "a sequence that is gone":
            await connection.execute("DROP SEQUENCE outbox_wakeup")
        await connection.execute("CREATE ROLE seller")
        await connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO seller")
        try:
            await connection.execute("SET ROLE seller")
            async with outbox.transaction(connection) as tx:
                tx.publish(Step(order="o-1", number=1))
            assert await connection.fetchval("SELECT count(*) FROM outbox") == 1
        finally:
            await connection.execute("RESET ROLE")
            await connection.execute("DROP OWNED BY seller")
            await connection.execute("DROP ROLE seller")
    assert "no relay was woken" in told[0]
