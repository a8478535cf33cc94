"""Locks, deadlocks, missing rights and a server that only reads: what a retry can cure is tried again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from streams.postgres import Connection, Database, Job, QueueOptions, QueueWorker
from streams.postgres.cdc import CdcRelay, ConnectorStatus
from streams.postgres.database import connect
from streams.postgres.outbox_owner import RelayKind, claim_outbox
from streams.postgres.queue import worker
from streams.postgres.relay import After
from streams.testing import MemoryPublisher
from tests.cdc import FakeConnect, of_a_connector, pass_all
from tests.postgres import IS_WAITING
from tests.queue_world import IN_ORDER, LOG, PARCELS, ParcelPacked, done, note, put, until_done
from tests.relays import QUICK, by_aggregate, drained, new_outbox, publish, relaying, unpublished, until

pytestmark = pytest.mark.promise("database-locks")

#: What relays do here: a lock is waited for no longer than this.
RELAY = replace(QUICK, lock_wait=0.5)
SOON = "ALTER DATABASE {} SET lock_timeout = '200ms'"


@pytest.fixture
async def impatient(database: Database) -> Database:
    """Sessions that are opened from now on wait for a lock no longer than 0.2 s."""
    await database.pool.execute(SOON.format(await database.pool.fetchval("SELECT current_database()")))
    await database.pool.execute(LOG)
    return database


@asynccontextmanager
async def operator(database: Database) -> AsyncIterator[Connection]:
    """A transaction of somebody else, who takes as long as they like."""
    connection = await connect(database.url, name="psql", settings={"deadlock_timeout": "1h"})
    try:
        await connection.execute("BEGIN")
        yield connection
    finally:
        await connection.close()


async def put_rows(database: Database, *numbers: int, order: str = "o-1") -> None:
    async with database.acquire() as connection:
        await publish(new_outbox(), connection, *((order, number) for number in numbers))


def events(logs: list[Any], event: str) -> list[Any]:
    return [each for each in logs if each["event"] == event]


LOCKS = {
    "rows": "SELECT FROM outbox FOR UPDATE",
    "one row": "SELECT FROM outbox WHERE id = 'o-1:2' FOR UPDATE",
    "table": "LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE",
}


@pytest.mark.parametrize("held", LOCKS)
async def test_marking_waits_for_an_operators_lock(impatient: Database, held: str) -> None:
    await put_rows(impatient, 1, 2, 3)
    publisher = MemoryPublisher()
    with capture_logs() as logs:
        async with operator(impatient) as other:
            await other.execute(LOCKS[held])
            pid = await other.fetchval("SELECT pg_backend_pid()")
            async with relaying(impatient.url, publisher, RELAY) as relay:
                await until(lambda: events(logs, "relay_waits"))
                waits = f"marking waits for a lock held by pid {pid} (psql"
                await until(lambda: waits in relay.counts.waiting)
                await until(lambda: len(publisher.written) == 3)
                attempt = relay.counts.attempts
                await until(lambda: relay.counts.attempts > attempt + 2)
                assert relay.counts.no_database == ""
                await other.execute("ROLLBACK")
                await drained(impatient)
                assert relay.counts.waiting == ""
    assert by_aggregate(publisher.written) == {"o-1": [1, 2, 3]}, "each came once"
    assert str(pid) in events(logs, "relay_waits")[-1]["error"] + events(logs, "relay_waits")[0]["error"]


async def test_reading_waits_for_a_lock_of_the_whole_table(impatient: Database) -> None:
    publisher = MemoryPublisher()
    with capture_logs() as logs:
        async with relaying(impatient.url, publisher, RELAY), operator(impatient) as other:
            await put_rows(impatient, 1)
            await drained(impatient)
            await other.execute("LOCK TABLE outbox, outbox_owner, outbox_schemas IN ACCESS EXCLUSIVE MODE")
            await until(lambda: events(logs, "relay_waits"))
            await other.execute("ROLLBACK")
            await put_rows(impatient, 2)
            await drained(impatient)
    assert by_aggregate(publisher.written) == {"o-1": [1, 2]}


async def test_a_deadlock_with_an_operator_is_survived(database: Database) -> None:
    await put_rows(database, 1, 2)
    publisher = MemoryPublisher()
    with capture_logs() as logs:
        async with operator(database) as other:
            await other.execute("UPDATE outbox SET last_error = '' WHERE id = 'o-1:2'")
            async with relaying(database.url, publisher, replace(RELAY, lock_wait=5.0)):
                await until(lambda: database.pool.fetchval(IS_WAITING))
                await other.execute("UPDATE outbox SET last_error = '' WHERE id = 'o-1:1'")
                await other.execute("COMMIT")
                await drained(database)
    assert "deadlock detected" in events(logs, "relay_waits")[0]["error"]
    assert by_aggregate(publisher.written) == {"o-1": [1, 2]}


async def _only_reads(connection: Connection, *, on: bool) -> None:
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {on}")
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'steadfaust relay' AND datname = current_database()"
    )


async def _refuses_marks(connection: Connection, *, on: bool) -> None:
    if on:
        await connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'audit is down'; END $$;"
            " CREATE TRIGGER refuse BEFORE UPDATE ON outbox EXECUTE FUNCTION refuse()"
        )
    else:
        await connection.execute("DROP TRIGGER refuse ON outbox")


@pytest.mark.parametrize("refusal", [_only_reads, _refuses_marks])
async def test_rows_that_cannot_be_marked_are_published_once(database: Database, refusal: Any) -> None:
    """However often the relay's session is another one."""
    publisher = MemoryPublisher()
    with capture_logs() as logs:
        async with relaying(database.url, publisher, RELAY) as relay, operator(database) as other:
            await other.execute("ROLLBACK")
            await put_rows(database, 1)
            await drained(database)
            await database.pool.expire_connections()
            publisher.holds.clear()
            await put_rows(database, 2, 3)
            await until(lambda: publisher.is_waiting)
            await refusal(other, on=True)
            publisher.holds.set()
            await until(lambda: len(events(logs, "relay_without_database")) + relay.counts.attempts > 3)
            assert await unpublished(database) == 2
            await refusal(other, on=False)
            await drained(database)
    found = by_aggregate(publisher.written)["o-1"]
    assert found.count(2) <= 2, "at most what was under way when its session ended came again"
    assert list(dict.fromkeys(found)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("take", "give"),
    [
        ("REVOKE UPDATE ON outbox FROM {}", "GRANT UPDATE ON outbox TO {}"),
        ("REVOKE SELECT ON outbox FROM {}", "GRANT SELECT ON outbox TO {}"),
        ("ALTER ROLE {} NOLOGIN", "ALTER ROLE {} LOGIN"),
        ("ALTER TABLE outbox RENAME TO aside", "ALTER TABLE aside RENAME TO outbox"),
    ],
)
async def test_a_relay_waits_for_what_it_may_not_do(database: Database, take: str, give: str) -> None:
    role = "relay_" + await database.pool.fetchval("SELECT current_database()")
    pool, publisher = database.pool, MemoryPublisher()
    await pool.execute(f"CREATE ROLE {role} LOGIN")
    try:
        await pool.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        await pool.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
        url = database.url.replace("//steadfaust@", f"//{role}@")
        await put_rows(database, 1)
        with capture_logs() as logs:
            async with relaying(url, publisher, RELAY) as relay:
                await drained(database)
                await pool.execute(take.format(role))
                await pool.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role
                )
                if "RENAME" not in take:
                    await put_rows(database, 2)
                told = "relay_without_database"
                await until(lambda: len(events(logs, told)) + relay.counts.attempts > 2)
                await pool.execute(give.format(role))
                await put_rows(database, 3)
                await drained(database)
    finally:
        await pool.execute(f"DROP OWNED BY {role}")
        await pool.execute(f"DROP ROLE {role}")
    assert by_aggregate(publisher.written)["o-1"][-1] == 3


async def test_a_relay_whose_statements_are_cancelled_goes_on(database: Database) -> None:
    publisher = MemoryPublisher()
    async with relaying(database.url, publisher, RELAY):
        for number in range(1, 6):
            await put_rows(database, number)
            await database.pool.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'steadfaust relay'"
            )
            await drained(database)
    assert sorted(set(by_aggregate(publisher.written)["o-1"])) == [1, 2, 3, 4, 5]


@asynccontextmanager
async def working(database: Database, handler: Any = note) -> AsyncIterator[None]:
    options = QueueOptions(poll=0.05, lease=2.0, base=0.05)
    works = QueueWorker(database, IN_ORDER, handler, options=options)
    task = asyncio.create_task(works.run())
    try:
        yield
        assert not task.done()
    finally:
        works.stop()
        await task


async def test_a_lock_in_a_handlers_way_is_no_failed_try(impatient: Database) -> None:
    """Other jobs are done meanwhile; those of its key wait."""
    await impatient.pool.execute("CREATE TABLE stock (item text PRIMARY KEY); INSERT INTO stock VALUES ('x')")

    async def take(connection: Connection, job: Job) -> None:
        if PARCELS.decode(job, ParcelPacked).parcel == "locked":
            await connection.execute("SELECT FROM stock FOR UPDATE")
        await note(connection, job)

    async with Database(impatient.url) as fresh:
        with capture_logs() as logs:
            async with operator(impatient) as other:
                await other.execute("SELECT FROM stock FOR UPDATE")
                await put(
                    impatient,
                    IN_ORDER,
                    ParcelPacked(parcel="locked"),
                    ParcelPacked(parcel="behind"),
                    ParcelPacked(parcel="other", customer="bob"),
                )
                async with working(fresh, take):
                    await until(lambda: len(events(logs, "queue_job_postponed")) > 4)
                    assert await done(impatient) == ["other"]
                    retries = await impatient.pool.fetchval("SELECT max(retry) FROM queue_job")
                    assert retries == 0
                    await other.execute("ROLLBACK")
                    await until_done(impatient, "other", "locked", "behind")


async def test_a_handler_that_always_meets_a_lock_fails(
    impatient: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_LOCKED", 2)
    await impatient.pool.execute("CREATE TABLE stock (item text)")

    async def take(connection: Connection, job: Job) -> None:
        await connection.execute("LOCK TABLE stock")

    async with Database(impatient.url) as fresh:
        with capture_logs() as logs:
            async with operator(impatient) as other:
                await other.execute("LOCK TABLE stock")
                await put(impatient, PARCELS, ParcelPacked(parcel="a"))
                async with working(fresh, take):
                    failed = "SELECT state = 'failed' AND error LIKE '%lock timeout%' FROM queue_job"
                    await until(lambda: impatient.pool.fetchval(failed))
    assert len(events(logs, "queue_job_postponed")) == 6, "two for each of three tries"


async def test_a_handlers_slow_statement_is_a_failed_try(database: Database) -> None:
    """It would be slow again: others of its batch are not to be tried with it for ever."""
    await database.pool.execute(LOG)

    async def be_slow(connection: Connection, job: Job) -> None:
        if PARCELS.decode(job, ParcelPacked).parcel == "slow":
            await connection.execute("SELECT pg_sleep(60)")
        await note(connection, job)

    async with Database(database.url, bound=0.3) as bounded:
        await put(
            database, IN_ORDER, ParcelPacked(parcel="slow"), ParcelPacked(parcel="quick", customer="bob")
        )
        async with working(bounded, be_slow):
            failed = "SELECT state = 'failed' FROM queue_job"
            await until(lambda: database.pool.fetchval(failed))
    assert await done(database) == ["quick"]


async def test_the_outbox_is_claimed_when_the_lock_is_gone(database: Database) -> None:
    async with operator(database) as other:
        await other.execute("LOCK TABLE outbox_owner IN ACCESS EXCLUSIVE MODE")
        publisher = MemoryPublisher()
        with capture_logs() as logs:
            async with relaying(database.url, publisher, RELAY):
                await until(lambda: events(logs, "relay_without_database"))
                await other.execute("ROLLBACK")
                await put_rows(database, 1)
                await drained(database)
    async with database.acquire() as connection:
        await claim_outbox(connection, RelayKind.POLL)


@pytest.mark.parametrize("after", After)
async def test_one_locked_row_holds_up_its_own_shard_alone(impatient: Database, after: After) -> None:
    """Of 200 aggregates, in one batch or several, and what comes while the lock is held."""
    async with impatient.acquire() as connection:
        await publish(new_outbox(), connection, *((f"o-{number}", 2) for number in range(200)))
    shard = await impatient.pool.fetchval("SELECT shard FROM outbox WHERE id = 'o-1:2'")
    others = f"SELECT count(*) FROM outbox WHERE published_at IS NULL AND shard <> {shard}"
    publisher = MemoryPublisher()
    with capture_logs() as logs:
        async with operator(impatient) as other:
            await other.execute(LOCKS["one row"])
            options = replace(RELAY, after=after, in_flight=1)
            async with relaying(impatient.url, publisher, options) as relay:
                await until(lambda: events(logs, "relay_waits"))
                await until(lambda: _is_zero(impatient, others))
                async with impatient.acquire() as connection:
                    await publish(new_outbox(), connection, *((f"p-{number}", 2) for number in range(200)))
                await until(lambda: _is_zero(impatient, others))
                assert "marking waits for a lock held by pid" in relay.counts.waiting
                await other.execute("ROLLBACK")
                await drained(impatient)
                await until(lambda: relay.counts.waiting == "")
    assert len(publisher.written) == 400, "each came once"


async def test_a_refused_row_that_is_locked_waits_for_both(impatient: Database) -> None:
    """The refusal cannot be recorded while somebody holds the row; others are published meanwhile."""
    await put_rows(impatient, 1, 2, 3)
    publisher = MemoryPublisher()
    publisher.refuses = lambda row: "too large" if row.id == "o-1:2" else ""
    noted = "SELECT attempts > 0 AND last_error = 'too large' FROM outbox WHERE id = 'o-1:2'"
    with capture_logs() as logs:
        async with operator(impatient) as other:
            await other.execute(LOCKS["one row"])
            async with relaying(impatient.url, publisher, RELAY) as relay:
                await until(lambda: events(logs, "relay_waits"))
                for number in range(20):
                    await put_rows(impatient, 1, order=f"p-{number}")
                others = {f"p-{number}" for number in range(20)}
                shards = "SELECT DISTINCT id FROM outbox WHERE shard = (SELECT shard FROM outbox LIMIT 1)"
                held = {row["id"].split(":")[0] for row in await impatient.pool.fetch(shards)}
                await until(lambda: others - held <= by_aggregate(publisher.written).keys())
                assert by_aggregate(publisher.written).get("o-1", [1]) == [1]
                await other.execute("ROLLBACK")
                await until(lambda: impatient.pool.fetchval(noted))
                await until(lambda: relay.counts.waiting == "")
                publisher.refuses = lambda _: ""
                await drained(impatient)
    assert by_aggregate(publisher.written)["o-1"] == [1, 2, 3]
    assert len(publisher.written) == 23, "each came once"


async def _is_zero(database: Database, count: str) -> bool:
    return bool(await database.pool.fetchval(count) == 0)


@pytest.mark.parametrize("held", LOCKS)
async def test_a_connector_is_looked_after_while_marking_waits(database: Database, held: str) -> None:
    connect = FakeConnect(ConnectorStatus("FAILED", ()))
    relay = CdcRelay(database, connect)  # type: ignore[arg-type]  # a double
    await put_rows(database, 1, 2)
    async with of_a_connector(database) as connection, operator(database) as other:
        assert await relay._marking.step(connection) == []
        await pass_all(connection)
        await other.execute(LOCKS[held])
        pid = await other.fetchval("SELECT pg_backend_pid()")
        status = await relay.step()
        assert f"marking waits for a lock held by pid {pid}" in status.unmarked
        assert connect.asked == ["configure", "restart"]
        await other.execute("ROLLBACK")
        assert (await relay.step()).unmarked == ""
        assert len(relay.marked()) == 2
