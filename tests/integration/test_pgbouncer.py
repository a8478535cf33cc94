"""PgBouncer in transaction mode before PostgreSQL: what works by it, and what says that it does not."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from streams.postgres import (
    Connection,
    ConsumerInbox,
    Database,
    QueueOptions,
    QueueWorker,
    connecting,
    migrate,
)
from streams.postgres.cleanup import DatabaseCleanup, Retention
from streams.postgres.database import connect
from streams.postgres.errors import PoolerBetween
from streams.postgres.relay import Relay
from streams.postgres.relay.options import RelayOptions
from streams.postgres.relay.session import RelaySession
from streams.testing.outbox import MemoryPublisher
from tests.orders_shop import MIGRATIONS, shop_on
from tests.pgbouncer import IGNORED, pgbouncer, require_pgbouncer
from tests.postgres import migrated, until
from tests.queue_world import LOG, PARCELS, ParcelPacked, note, put
from tests.relays import drained, new_outbox, publish, relaying
from tests.waiting import BOUND

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.promise("pgbouncer"),
]
DAY = 86_400.0


@pytest.fixture(params=["", IGNORED], ids=["as it is", "ignoring settings"])
def pooled_url(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> Iterator[str]:
    require_pgbouncer()
    connecting._pooled.clear()
    with pgbouncer(tmp_path, postgres_url, ignored=request.param) as url:
        yield url


@pytest.fixture
def session_url(tmp_path: Path, postgres_url: str) -> Iterator[str]:
    require_pgbouncer()
    connecting._pooled.clear()
    with pgbouncer(tmp_path, postgres_url, mode="session") as url:
        yield url


async def test_many_write_to_the_outbox(pooled_url: str) -> None:
    outbox = new_outbox()
    async with Database(pooled_url, most=20, patience=BOUND) as database:

        async def write(number: int) -> None:
            async with database.acquire() as connection:
                await publish(outbox, connection, (f"o-{number}", 1))

        await asyncio.gather(*(write(number) for number in range(200)))
        assert await database.pool.fetchval("SELECT count(*) FROM outbox") == 200


async def test_an_inbox_handles_each_event_once(pooled_url: str) -> None:
    async with Database(pooled_url, most=20, patience=BOUND) as database:
        await database.pool.execute(LOG)
        inbox = ConsumerInbox(database, "accounts")

        async def handle(connection: Connection, payload: str) -> None:
            await connection.execute("INSERT INTO done (parcel) VALUES ($1)", payload)

        events = [f"e-{number % 50}" for number in range(200)]
        await asyncio.gather(
            *(inbox.process_idempotent(each, "topic", "type", each, handle) for each in events)
        )
        assert await database.pool.fetchval("SELECT count(*) FROM done") == 50


async def test_queue_workers_do_each_job_once(pooled_url: str) -> None:
    async with Database(pooled_url, most=20, patience=BOUND) as database:
        await database.pool.execute(LOG)
        options = QueueOptions(batch=5, concurrency=3)
        workers = [QueueWorker(database, PARCELS, note, options=options) for _ in range(2)]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        for start in range(0, 200, 10):
            await put(database, PARCELS, *(ParcelPacked(parcel=str(start + n)) for n in range(10)))
        await until(database, "SELECT count(*) = 0 FROM queue_job")
        assert await database.pool.fetchval("SELECT count(*) FROM done") == 200
        assert await database.pool.fetchval("SELECT count(DISTINCT parcel) FROM done") == 200
        for worker in workers:
            worker.stop()
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*running)


async def test_a_sleeping_worker_looks_by_itself(pooled_url: str) -> None:
    with capture_logs() as logs:
        async with Database(pooled_url) as database:
            await database.pool.execute(LOG)
            worker = QueueWorker(database, PARCELS, note, options=QueueOptions(poll=0.1))
            running = asyncio.create_task(worker.run())
            await until(database, "SELECT asleep FROM queue_wake")
            await put(database, PARCELS, ParcelPacked(parcel="late"))
            await until(database, "SELECT count(*) = 1 FROM done")
            worker.stop()
            await running
    assert [each["event"] for each in logs].count("postgres_pooler") == 1


async def test_orders_are_placed_over_http(pooled_url: str, postgres_url: str) -> None:
    await migrated(postgres_url, MIGRATIONS)
    async with shop_on(pooled_url, most=8, patience=BOUND) as shop:
        answers = await asyncio.gather(*(shop.place(f"k-{number % 50}") for number in range(100)))
        assert {each.status_code for each in answers} <= {202, 409}
        answers = [await shop.place(f"k-{number}") for number in range(50)]
        assert {each.status_code for each in answers} == {202}
        assert len(await shop.rows("orders")) == 50
        order = answers[0].json()["order_id"]
        assert (await shop.client.delete(f"/orders/{order}")).status_code == 202
        assert (await shop.client.get(f"/orders/{order}")).json()["cancellation"] == "requested"


async def test_cleanup_is_left_to_one_and_leaves_no_lock(pooled_url: str) -> None:
    retention = Retention(outbox=DAY, inbox=DAY, duplicates_within=DAY)
    async with Database(pooled_url, most=3) as one, Database(pooled_url, most=3) as other:
        for _ in range(20):
            await asyncio.gather(*(DatabaseCleanup(each, retention).clean_up() for each in (one, other)))
        assert await DatabaseCleanup(one, retention).clean_up() is not None
        assert await one.pool.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


async def test_a_relay_is_refused_with_what_to_set(pooled_url: str) -> None:
    with pytest.raises(PoolerBetween, match=r"transaction mode.*set STEADFAUST_POSTGRES_URL"):
        await Relay(pooled_url, MemoryPublisher(), RelayOptions()).run()


async def test_a_migration_is_refused_with_what_to_set(pooled_url: str) -> None:
    connection = await connect(pooled_url)
    try:
        with pytest.raises(PoolerBetween, match="set STEADFAUST_POSTGRES_URL"):
            await migrate(connection, url=pooled_url)
    finally:
        await connection.close()


async def test_a_relay_works_by_a_pooler_in_session_mode(session_url: str, postgres_url: str) -> None:
    session = await RelaySession(session_url, RelayOptions(), lambda: None).open()
    assert await session._live.fetchval("SHOW enable_seqscan") == "off"
    await session.close()
    async with Database(postgres_url) as database, relaying(session_url, MemoryPublisher()):
        async with database.acquire() as connection:
            await publish(new_outbox(), connection, ("o", 1), ("o", 2))
        await drained(database)
