"""How the outbox and the queues of a real PostgreSQL stand, as Prometheus and `/health` are told."""

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from streams.errors import PermanentError
from streams.postgres import Connection, Database, Job, QueueWorker
from streams.postgres.queue.operations import retry_jobs
from streams.postgres.watch import DatabaseWatch
from tests.postgres import of_database
from tests.queue_world import LOG, PARCELS, ParcelPacked, note, put
from tests.relays import new_outbox, publish


@pytest.fixture
async def database(database: Database) -> Database:
    await database.pool.execute(LOG)
    return database


class Watch(DatabaseWatch):
    """Knows what Prometheus is told."""

    def __init__(self, database: Database) -> None:
        self.registry = CollectorRegistry()
        super().__init__(database, self.registry)

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0

    def jobs(self, queue: str, state: str) -> float:
        return self.value("queue_jobs", queue=queue, state=state)


@pytest.fixture
def watch(database: Database) -> Watch:
    return Watch(database)


async def refuse(connection: Connection, job: Job) -> None:
    raise PermanentError("no such street")


async def test_nothing_is_wrong_with_empty_tables(watch: Watch) -> None:
    await watch.look()
    assert (await watch.outbox(), await watch.queues()) == ("", "")


@pytest.mark.promise("outbox-watch")
async def test_rows_that_wait_and_that_brokers_refuse_are_told(watch: Watch, connection: Connection) -> None:
    await publish(new_outbox(), connection, ("o-1", 1), ("o-2", 1))
    await connection.execute(
        "UPDATE outbox SET retry_at = now(), created_at = now() - interval '400 s' WHERE aggregate_id = 'o-1'"
    )
    await watch.look()
    assert watch.value("outbox_unpublished_rows") == 2
    assert watch.value("outbox_failed_rows") == 1
    assert watch.value("outbox_oldest_unpublished_seconds") >= 400
    why = await watch.outbox()
    assert "the oldest of 2 rows has waited for 4" in why
    assert "brokers have refused 1" in why


@pytest.mark.promise("outbox-watch")
async def test_failed_jobs_are_a_reason_until_an_operator_acts(
    watch: Watch, database: Database, connection: Connection
) -> None:
    (job,) = await put(database, PARCELS, ParcelPacked(parcel="p-1"))
    await QueueWorker(database, PARCELS, refuse).work_off()
    await watch.look()
    assert await watch.queues() == "1 jobs of parcels have failed: see `steadfaust queue list parcels`"
    assert watch.jobs("parcels", "failed") == 1
    await retry_jobs(connection, "parcels", [job])
    await QueueWorker(database, PARCELS, note).work_off()
    await watch.look()
    assert await watch.queues() == ""


@pytest.mark.promise("outbox-watch")
async def test_a_job_that_nobody_takes_is_a_reason(watch: Watch, database: Database) -> None:
    first, second = await put(database, PARCELS, ParcelPacked(parcel="p-1"), ParcelPacked(parcel="p-2"))
    for job, ago in ((first, 3600), (second, 400)):
        await database.pool.execute(
            "UPDATE queue_job SET due = t, updated = t"
            " FROM (SELECT now() - $2::int * interval '1 s' AS t) AS before WHERE id = $1",
            job,
            ago,
        )
    await watch.look()
    assert "a job of parcels has waited for a worker for 36" in await watch.queues()
    await database.pool.execute(
        "INSERT INTO queue_lease VALUES (1, 'parcels', 'w', $1, '{}', now() + interval '1 hour')", [first]
    )
    await watch.look()
    assert "a job of parcels has waited for a worker for 4" in await watch.queues()

    assert [watch.jobs("parcels", state) for state in ("ready", "under_way", "failed")] == [1, 1, 0]


async def test_a_job_whose_pause_is_over_waits_for_a_worker(watch: Watch, database: Database) -> None:
    async with database.transaction() as connection:
        await PARCELS.enqueue(connection, ParcelPacked(parcel="p-1"), delay=3600)
    await watch.look()
    assert await watch.queues() == ""
    await database.pool.execute("UPDATE queue_job SET due = now() - interval '400 s'")
    await watch.look()
    assert "a job of parcels has waited for a worker for 4" in await watch.queues()


@pytest.mark.promise("outbox-watch")
async def test_a_database_that_cannot_be_looked_at_is_told(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Database(of_database(postgres_server, "postgres")) as bare:
        watch = Watch(bare)
        await watch.look()
        assert await watch.outbox() == ""  # it may come in a moment
        monkeypatch.setattr("streams.postgres.watch._STALE", 0.0)
        assert 'it is not known how many rows wait: relation "outbox" does not exist' in await watch.outbox()


async def test_a_long_queue_is_counted_up_to_a_bound(watch: Watch, database: Database) -> None:
    await database.pool.execute(
        "INSERT INTO queue_job (queue, state, topic, kind, action, payload, headers, updated)"
        " SELECT 'many', 'ready', 't', 'event', 'handle', '', '[]', now() FROM generate_series(1, 150000)"
    )
    await database.pool.execute("ANALYZE queue_job")
    await watch.look()
    assert watch.jobs("many", "ready") == 100_000


async def test_a_database_that_is_newer_is_told_once(watch: Watch, connection: Connection) -> None:
    await watch.look()
    assert await watch.migrations() == ""
    await connection.execute(
        'INSERT INTO applied_migrations ("set", number, name, digest)'
        " VALUES ('steadfaust', 999, 'later', '')"
    )
    with capture_logs() as logs:
        await watch.look()
        await watch.look()
    assert "the database has migration 999 of the library, this program knows" in await watch.migrations()
    assert [each["event"] for each in logs] == ["database_is_newer"]
