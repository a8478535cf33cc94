"""The relay on a real PostgreSQL; what is written to is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Self

import pytest

from streams.claims.checks import ClaimChecks
from streams.postgres import Database, Outbox
from streams.postgres.outbox import OutboxRow
from streams.postgres.outbox.desk import cleanup, referenced
from streams.postgres.relay import After, Relay
from streams.postgres.relay.options import SHARDS
from streams.postgres.relay.session import _SQL, RelaySession
from streams.testing import MemoryPublisher
from streams.testing.blobs import MemoryBlobs
from tests.relays import (
    QUICK,
    Billed,
    by_aggregate,
    drained,
    first_time,
    new_outbox,
    publish,
    relaying,
    unpublished,
    until,
)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url) as database:
        yield database


@pytest.fixture
def outbox() -> Outbox:
    return new_outbox()


@pytest.fixture
def publisher() -> MemoryPublisher:
    return MemoryPublisher()


class RelaySessionUnderTest(RelaySession):
    """Tells how it would read."""

    def __init__(self, url: str) -> None:
        super().__init__(url, QUICK, lambda: None)

    async def plan(self) -> str:
        rows = await self._live.fetch(f"EXPLAIN {_SQL['fetch']}", list(range(SHARDS)), 100, 2000, 1 << 20)
        return "\n".join(row[0] for row in rows)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def test_rows_are_published_in_order_and_marked(
    database: Database, outbox: Outbox, publisher: MemoryPublisher
) -> None:
    orders = [f"o-{number}" for number in range(50)]
    async with database.acquire() as connection:
        for number in range(6):
            await publish(outbox, connection, *((order, number) for order in orders))
    async with relaying(database.url, publisher, replace(QUICK, batch=40)):
        await drained(database)
    assert by_aggregate(publisher.written) == {order: list(range(6)) for order in orders}


async def test_schemas_are_announced_before_the_first_row(
    database: Database, outbox: Outbox, publisher: MemoryPublisher
) -> None:
    async with database.acquire() as connection:
        await publish(outbox, connection, ("o-1", 1))
    async with relaying(database.url, publisher):
        await drained(database)
    assert publisher.announced.keys() == {publisher.written[0].schema_fingerprint}


async def test_a_row_that_commits_late_is_not_skipped(
    database: Database, outbox: Outbox, publisher: MemoryPublisher
) -> None:
    async with database.acquire() as late, database.acquire() as connection:
        transaction = late.transaction()
        await transaction.start()
        await publish(outbox, late, ("late", 1))
        await publish(outbox, connection, ("early", 1), ("early", 2))
        async with relaying(database.url, publisher):
            await until(lambda: len(publisher.written) == 2)
            await transaction.commit()
            await drained(database)
    positions = [row.position for row in publisher.written]
    assert positions[2] < positions[0], "the late one has the lower position"
    assert by_aggregate(publisher.written) == {"early": [1, 2], "late": [1]}


async def test_a_refused_row_holds_back_its_aggregate_alone(
    database: Database, outbox: Outbox, publisher: MemoryPublisher
) -> None:
    publisher.refuses = lambda row: "too large" if row.id == "bad:2" else ""
    async with database.acquire() as connection:
        for number in range(1, 4):
            await publish(outbox, connection, ("bad", number), ("good", number))
        async with relaying(database.url, publisher):

            async def tried() -> bool:
                return bool(await connection.fetchval("SELECT attempts >= 2 FROM outbox WHERE id = 'bad:2'"))

            await until(tried)
            await publish(outbox, connection, ("good", 4))
            await until(lambda: by_aggregate(publisher.written).get("good") == [1, 2, 3, 4])
            assert by_aggregate(publisher.written)["bad"] == [1]
            row = await connection.fetchrow("SELECT * FROM outbox WHERE id = 'bad:2'")
            assert row is not None
            assert row["last_error"] == "too large"
            assert row["retry_at"] is not None
            publisher.refuses = lambda _: ""
            await drained(database)
    assert by_aggregate(publisher.written)["bad"] == [1, 2, 3]


async def test_rows_for_other_topics_wait_behind_a_refused_one(
    database: Database, outbox: Outbox, publisher: MemoryPublisher
) -> None:
    publisher.refuses = lambda row: "no such topic" if row.topic == Billed.TOPIC else ""
    async with database.acquire() as connection:
        await publish(outbox, connection, ("o-1", 1))
        await publish(outbox, connection, ("o-1", 2), kind=Billed)
        await publish(outbox, connection, ("o-1", 3), ("o-2", 1))
    async with relaying(database.url, publisher):
        await until(lambda: len(publisher.written) == 2)
        await until(lambda: by_aggregate(publisher.written) == {"o-1": [1], "o-2": [1]})
        publisher.refuses = lambda _: ""
        await drained(database)
    assert by_aggregate(publisher.written)["o-1"] == [1, 2, 3]


async def test_nothing_is_lost_while_kafka_is_down(
    database: Database, outbox: Outbox, publisher: MemoryPublisher
) -> None:
    publisher.is_down = True
    async with relaying(database.url, publisher) as relay:
        async with database.acquire() as connection:
            for number in range(5):
                await publish(outbox, connection, ("o-1", number), ("o-2", number))
        await until(lambda: relay.counts.no_kafka)
        publisher.is_down = False
        await drained(database)
        assert relay.counts.no_kafka == ""
    assert by_aggregate(publisher.written) == {"o-1": list(range(5)), "o-2": list(range(5))}


@pytest.mark.parametrize(
    ("after", "kept", "archived"), [(After.MARK, 2, 0), (After.DELETE, 0, 0), (After.ARCHIVE, 0, 2)]
)
async def test_a_published_row_is_marked_deleted_or_archived(
    database: Database, outbox: Outbox, publisher: MemoryPublisher, after: After, kept: int, archived: int
) -> None:
    async with database.acquire() as connection:
        await publish(outbox, connection, ("o-1", 1), ("o-1", 2))
        async with relaying(database.url, publisher, replace(QUICK, after=after)):
            await drained(database)
        counts = [
            await connection.fetchval(f"SELECT count(*) FROM {table}")
            for table in ("outbox", "outbox_archive")
        ]
    assert counts == [kept, archived]


@pytest.mark.parametrize("relays", [2, 4])
async def test_relays_share_the_aggregates_and_take_them_over(
    database: Database, outbox: Outbox, publisher: MemoryPublisher, relays: int
) -> None:
    orders = [f"o-{number}" for number in range(40)]
    async with AsyncExitStack() as leaving, relaying(database.url, publisher) as staying:
        others = [
            await leaving.enter_async_context(relaying(database.url, publisher)) for _ in range(relays - 1)
        ]
        running = [staying, *others]
        await until(lambda: [relay.counts.shards for relay in running] == [SHARDS // relays] * relays)
        async with database.acquire() as late, database.acquire() as connection:
            for number in range(10):
                if number == 5:  # half of them go, with transactions open that commit later
                    await publish(outbox, connection, *((order, number) for order in orders))
                    await leaving.aclose()
                    continue
                async with late.transaction():
                    await publish(outbox, late, *((order, number) for order in orders[:20]))
                    await publish(outbox, connection, *((order, number) for order in orders[20:]))
        await until(lambda: staying.counts.shards == SHARDS)
        await drained(database)
    assert by_aggregate(publisher.written) == {order: list(range(10)) for order in orders}


async def test_a_relay_whose_session_ends_joins_again(
    database: Database, outbox: Outbox, publisher: MemoryPublisher
) -> None:
    publisher.holds.clear()
    async with relaying(database.url, publisher), database.acquire() as connection:
        for number in range(3):
            await publish(outbox, connection, ("o-1", number))
        await until(lambda: publisher.is_waiting)
        ended = await connection.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE application_name = 'steadfaust relay' AND datname = current_database()"
        )
        assert ended == 1
        await until(lambda: not publisher.is_waiting)
        assert publisher.written == []
        publisher.holds.set()
        await drained(database)
    assert first_time(by_aggregate(publisher.written)["o-1"]) == [0, 1, 2]


async def test_a_relay_reads_no_more_than_its_bytes(
    database: Database, outbox: Outbox, publisher: MemoryPublisher
) -> None:
    """Whatever waits: a batch is bounded by the payloads' sizes, and one row more."""
    sizes: list[int] = []
    taken = publisher.publish

    async def seen(rows):  # type: ignore[no-untyped-def] # as the fake's
        sizes.append(sum(len(row.payload) for row in rows))
        return await taken(rows)

    publisher.publish = seen  # type: ignore[method-assign]
    async with database.acquire() as connection:
        await connection.execute(
            "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source,"
            " ce_time, ce_correlationid, schema_fingerprint) SELECT n, 'order', n % 7, 't', 't',"
            " decode(repeat('00', 100000), 'hex'), 's', 't', 'c', 'f' FROM generate_series(1, 60) AS n"
        )
        async with relaying(database.url, publisher, replace(QUICK, batch_bytes=400_000)):
            await drained(database)
    assert sum(sizes) == 60 * 100_000
    assert max(sizes) <= 500_000


async def test_a_relay_reads_by_the_index_of_the_unpublished_alone(database: Database) -> None:
    """However many published rows there are: their number is in no cost of the plan."""
    async with RelaySessionUnderTest(database.url) as session:
        plan = await session.plan()
    scans = [line for line in plan.splitlines() if "Scan" in line]
    assert any("outbox_unpublished" in line for line in scans)
    assert not [line for line in scans if "Seq Scan" in line]


async def test_an_error_that_nobody_expects_ends_the_relay(
    database: Database, outbox: Outbox, publisher: MemoryPublisher
) -> None:
    def fail(_: OutboxRow) -> str:
        raise ZeroDivisionError("a mistake")

    publisher.refuses = fail
    async with database.acquire() as connection:
        await publish(outbox, connection, ("o-1", 1))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(Relay(database.url, publisher, QUICK).run(), 30)
    assert await unpublished(database) == 1


async def test_a_row_with_a_payload_in_the_object_store_stays(
    database: Database, outbox: Outbox, publisher: MemoryPublisher
) -> None:
    blobs = MemoryBlobs()
    outbox.claims = ClaimChecks(blobs, bucket=blobs.bucket, threshold=500)
    async with database.acquire() as connection:
        await publish(outbox, connection, ("o-1", 1))
        await publish(outbox, connection, ("o-1", 2), note="n" * 1000)
        async with relaying(database.url, publisher, replace(QUICK, after=After.DELETE)):
            await drained(database)
        assert [row["id"] for row in await connection.fetch("SELECT id FROM outbox")] == ["o-1:2"]
        assert await referenced(connection) == [f"s3://{blobs.bucket}/{blobs.names[0]}"]
        assert await cleanup(connection, 0.0) == 1
    assert by_aggregate(publisher.written) == {"o-1": [1, 2]}
