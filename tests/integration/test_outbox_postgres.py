"""The outbox on a real PostgreSQL: what commits with what, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest

from streams.model.codecs import Schemas, avro
from streams.model.message import Message
from streams.model.schema_versions import nothing_frozen
from streams.postgres import Database, Outbox
from streams.postgres.database import connect


class Placed(Message, frozen=True, kw_only=True):
    TOPIC = "shop.order.placed.v1"
    order: str

    @property
    def key(self) -> str:
        return self.order


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url) as database:
        async with database.acquire() as connection:
            await connection.execute("CREATE TABLE orders (id text PRIMARY KEY)")
        yield database


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(avro(nothing_frozen, Schemas()), source="shop")


async def count(database: Database, table: str) -> int:
    async with database.acquire() as connection:
        return int(await connection.fetchval(f"SELECT count(*) FROM {table}"))


async def test_a_row_and_its_message_commit_together(database: Database, outbox: Outbox) -> None:
    async with database.acquire() as connection, outbox.transaction(connection) as tx:
        await connection.execute("INSERT INTO orders VALUES ('o-1')")
        tx.publish(Placed(order="o-1"))
    assert [await count(database, table) for table in ("orders", "outbox")] == [1, 1]


async def test_a_message_goes_with_the_transaction_around_it(database: Database, outbox: Outbox) -> None:
    with suppress(KeyError):
        async with database.transaction() as connection:
            async with outbox.transaction(connection) as tx:
                await connection.execute("INSERT INTO orders VALUES ('o-1')")
                tx.publish(Placed(order="o-1"))
            raise KeyError("later, in the caller's transaction")
    assert [await count(database, table) for table in ("orders", "outbox", "outbox_schemas")] == [0, 0, 0]


async def test_the_schema_is_stored_once_with_the_first_message(database: Database, outbox: Outbox) -> None:
    for number in range(2):
        async with database.acquire() as connection, outbox.transaction(connection) as tx:
            tx.publish(Placed(order=f"o-{number}"))
    codec = outbox.codec(Placed)
    async with database.acquire() as connection:
        rows = await connection.fetch("SELECT fingerprint, schema FROM outbox_schemas")
    assert [tuple(row) for row in rows] == [(codec.fingerprint.decode(), codec.schema)]


async def test_a_relay_that_sleeps_is_told_once_however_many_publish(
    database: Database, outbox: Outbox, postgres_url: str
) -> None:
    told: list[str] = []
    ear = await connect(postgres_url)
    await ear.add_listener("outbox", lambda *_: told.append("told"))
    await ear.add_listener("end", lambda *_: told.append("end"))
    async with database.acquire() as connection:
        for _ in range(2):  # asleep twice
            await connection.execute("SELECT setval('outbox_wakeup', 1, false)")
            for number in range(20):
                async with outbox.transaction(connection) as tx:
                    tx.publish(Placed(order=f"o-{number}"))
        await connection.execute("SELECT pg_notify('end', '')")
    async with asyncio.timeout(60):
        while "end" not in told:
            await ear.execute("SELECT")
    await ear.close()
    assert told == ["told", "told", "end"]


async def test_a_topic_that_kafka_does_not_allow_is_no_row(database: Database) -> None:
    async with database.acquire() as connection:
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(
                "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source,"
                " ce_time, ce_correlationid, schema_fingerprint)"
                " VALUES ('1', 'a', 'a', 'e', 'no topic', '', 's', 't', 'c', 'f')"
            )
