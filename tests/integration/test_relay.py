"""The relay on a real PostgreSQL; what is written to is in memory."""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from streams.model.claim_checks import ClaimChecks
from streams.postgres import Connection, Database, Outbox
from streams.postgres.outbox import OutboxRow
from streams.postgres.outbox.operations import cleanup, referenced
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
    new_outbox,
    publish,
    relaying,
    unpublished,
    until,
)
from tests.waiting import BOUND


@dataclass
class Ground:
    database: Database
    connection: Connection
    outbox: Outbox = field(default_factory=new_outbox)
    publisher: MemoryPublisher = field(default_factory=MemoryPublisher)

    async def publish(self, *steps: tuple[str, int], **how: Any) -> None:
        await publish(self.outbox, self.connection, *steps, **how)

    def relaying(self, **options: Any) -> AbstractAsyncContextManager[Relay]:
        return relaying(self.database.url, self.publisher, replace(QUICK, **options))

    async def drained(self) -> None:
        await drained(self.database)

    def found(self) -> dict[str, list[int]]:
        return by_aggregate(self.publisher.written)


@pytest.fixture
def ground(database: Database, connection: Connection) -> Ground:
    return Ground(database, connection)


class RelaySessionUnderTest(RelaySession):
    """Tells how it would read."""

    def __init__(self, url: str) -> None:
        super().__init__(url, QUICK, lambda: None)

    async def plan(self) -> str:
        rows = await self._live.fetch(
            f"EXPLAIN {_SQL['fetch']}", list(range(SHARDS)), 100, 2000, 1 << 20, 300.0
        )
        return "\n".join(row[0] for row in rows)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def test_rows_are_published_in_order_and_marked(ground: Ground) -> None:
    orders = [f"o-{number}" for number in range(50)]
    for number in range(6):
        await ground.publish(*((order, number) for order in orders))
    async with ground.relaying(batch=40):
        await ground.drained()
    assert ground.found() == {order: list(range(6)) for order in orders}


@pytest.mark.promise("outbox-record")
async def test_schemas_are_announced_before_the_first_row(ground: Ground) -> None:
    await ground.publish(("o-1", 1))
    async with ground.relaying():
        await ground.drained()
    assert ground.publisher.announced.keys() == {ground.publisher.written[0].schema_fingerprint}


@pytest.mark.promise("outbox-order")
async def test_a_row_that_commits_late_is_not_skipped(ground: Ground) -> None:
    async with ground.database.acquire() as late:
        transaction = late.transaction()
        await transaction.start()
        await publish(ground.outbox, late, ("late", 1))
        await ground.publish(("early", 1), ("early", 2))
        async with ground.relaying():
            await until(lambda: len(ground.publisher.written) == 2)
            await transaction.commit()
            await ground.drained()
    positions = [row.position for row in ground.publisher.written]
    assert positions[2] < positions[0], "the late one has the lower position"
    assert ground.found() == {"early": [1, 2], "late": [1]}


async def test_a_refused_row_holds_back_its_aggregate_alone(ground: Ground) -> None:
    ground.publisher.refuses = lambda row: "too large" if row.id == "bad:2" else ""
    for number in range(1, 4):
        await ground.publish(("bad", number), ("good", number))
    async with ground.relaying():
        asked = "SELECT attempts >= 2 FROM outbox WHERE id = 'bad:2'"
        await until(lambda: ground.connection.fetchval(asked))
        await ground.publish(("good", 4))
        await until(lambda: ground.found().get("good") == [1, 2, 3, 4])
        assert ground.found()["bad"] == [1]
        row = await ground.connection.fetchrow("SELECT * FROM outbox WHERE id = 'bad:2'")
        assert row is not None
        assert row["last_error"] == "too large"
        assert row["retry_at"] is not None
        ground.publisher.refuses = lambda _: ""
        await ground.drained()
    assert ground.found()["bad"] == [1, 2, 3]


@pytest.mark.promise("database-clock")
async def test_an_attempt_set_by_a_clock_ahead_is_made_now(ground: Ground) -> None:
    await ground.publish(("ahead", 1), ("waits", 1))
    set_to = "UPDATE outbox SET retry_at = clock_timestamp() + $2 * interval '1 s' WHERE aggregate_id = $1"
    await ground.connection.execute(set_to, "ahead", QUICK.last_retry + 3600)
    await ground.connection.execute(set_to, "waits", 600)
    async with ground.relaying(last_retry=660.0):
        await until(lambda: ground.found() == {"ahead": [1]})
    assert ground.found() == {"ahead": [1]}


@pytest.mark.promise("outbox-refused")
async def test_rows_for_other_topics_wait_behind_a_refused_one(ground: Ground) -> None:
    ground.publisher.refuses = lambda row: "no such topic" if row.topic == Billed.TOPIC else ""
    await ground.publish(("o-1", 1))
    await ground.publish(("o-1", 2), kind=Billed)
    await ground.publish(("o-1", 3), ("o-2", 1))
    async with ground.relaying():
        await until(lambda: len(ground.publisher.written) == 2)
        await until(lambda: ground.found() == {"o-1": [1], "o-2": [1]})
        ground.publisher.refuses = lambda _: ""
        await ground.drained()
    assert ground.found()["o-1"] == [1, 2, 3]


async def test_nothing_is_lost_while_kafka_is_down(ground: Ground) -> None:
    ground.publisher.is_down = True
    async with ground.relaying() as relay:
        for number in range(5):
            await ground.publish(("o-1", number), ("o-2", number))
        await until(lambda: relay.counts.no_kafka)
        ground.publisher.is_down = False
        await ground.drained()
        assert relay.counts.no_kafka == ""
    assert ground.found() == {"o-1": list(range(5)), "o-2": list(range(5))}


@pytest.mark.promise("outbox-published")
@pytest.mark.parametrize(
    ("after", "kept", "archived"), [(After.MARK, 2, 0), (After.DELETE, 0, 0), (After.ARCHIVE, 0, 2)]
)
async def test_a_published_row_is_marked_deleted_or_archived(
    ground: Ground, after: After, kept: int, archived: int
) -> None:
    await ground.publish(("o-1", 1), ("o-1", 2))
    async with ground.relaying(after=after):
        await ground.drained()
    counts = [
        await ground.connection.fetchval(f"SELECT count(*) FROM {table}")
        for table in ("outbox", "outbox_archive")
    ]
    assert counts == [kept, archived]


@pytest.mark.promise("outbox-order", "two and four")
@pytest.mark.parametrize("relays", [2, 4])
async def test_relays_share_the_aggregates_and_take_them_over(ground: Ground, relays: int) -> None:
    orders = [f"o-{number}" for number in range(40)]
    async with AsyncExitStack() as leaving, ground.relaying() as staying:
        others = [await leaving.enter_async_context(ground.relaying()) for _ in range(relays - 1)]
        running = [staying, *others]
        await until(lambda: [relay.counts.shards for relay in running] == [SHARDS // relays] * relays)
        async with ground.database.acquire() as late:
            for number in range(10):
                if number == 5:  # half of them go, with transactions open that commit later
                    await ground.publish(*((order, number) for order in orders))
                    await leaving.aclose()
                    continue
                async with late.transaction():
                    await publish(ground.outbox, late, *((order, number) for order in orders[:20]))
                    await ground.publish(*((order, number) for order in orders[20:]))
        await until(lambda: staying.counts.shards == SHARDS)
        await ground.drained()
    assert ground.found() == {order: list(range(10)) for order in orders}


async def test_a_relay_frozen_while_it_prepares_loses_its_shards(ground: Ground) -> None:
    await ground.publish(("o-1", 0))
    async with RelaySessionUnderTest(ground.database.url) as frozen:
        await frozen.balance(set())
        assert len(frozen.owned) == SHARDS
        # Without its execution: PostgreSQL waits for that, and counts no timeout.
        await frozen._live.prepare("SELECT 1")
        with capture_logs() as logs:
            async with ground.relaying():
                await ground.drained()
    assert "silent_relay_ended" in {each["event"] for each in logs}


async def test_a_relay_reads_no_more_than_its_bytes(ground: Ground) -> None:
    """Whatever waits: a batch is bounded by the payloads' sizes, and one row more."""
    sizes: list[int] = []
    taken = ground.publisher.publish

    async def seen(rows):  # type: ignore[no-untyped-def] # as the fake's
        sizes.append(sum(len(row.payload) for row in rows))
        return await taken(rows)

    ground.publisher.publish = seen  # type: ignore[method-assign]
    await ground.connection.execute(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source,"
        " ce_time, ce_correlationid, schema_fingerprint) SELECT n, 'order', n % 7, 't', 't',"
        " decode(repeat('00', 100000), 'hex'), 's', 't', 'c', 'f' FROM generate_series(1, 60) AS n"
    )
    async with ground.relaying(batch_bytes=400_000):
        await ground.drained()
    assert sum(sizes) == 60 * 100_000
    assert max(sizes) <= 500_000


async def test_a_relay_reads_by_the_index_of_the_unpublished_alone(database: Database) -> None:
    """However many published rows there are: their number is in no cost of the plan."""
    async with RelaySessionUnderTest(database.url) as session:
        plan = await session.plan()
    scans = [line for line in plan.splitlines() if "Scan" in line]
    assert any("outbox_unpublished" in line for line in scans)
    assert not [line for line in scans if "Seq Scan" in line]


async def test_an_error_that_nobody_expects_ends_the_relay(ground: Ground) -> None:
    def fail(_: OutboxRow) -> str:
        raise ZeroDivisionError("a mistake")

    ground.publisher.refuses = fail
    await ground.publish(("o-1", 1))
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(BOUND):
            await Relay(ground.database.url, ground.publisher, QUICK).run()
    assert await unpublished(ground.database) == 1


@pytest.mark.promise("outbox-payloads")
async def test_a_row_with_a_payload_in_the_object_store_stays(ground: Ground) -> None:
    blobs = MemoryBlobs()
    ground.outbox.claims = ClaimChecks(blobs, bucket=blobs.bucket, threshold=500)
    await ground.publish(("o-1", 1))
    await ground.publish(("o-1", 2), note="n" * 1000)
    async with ground.relaying(after=After.DELETE):
        await ground.drained()
    assert [row["id"] for row in await ground.connection.fetch("SELECT id FROM outbox")] == ["o-1:2"]
    assert await referenced(ground.connection) == [f"s3://{blobs.bucket}/{blobs.names[0]}"]
    assert await cleanup(ground.connection, 0.0) == 1
    assert ground.found() == {"o-1": [1, 2]}
