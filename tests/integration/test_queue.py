"""The queue on a real PostgreSQL: what only a server, several connections and processes can show."""

import asyncio
import socket
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from subprocess import PIPE, Popen

import pytest
from structlog.testing import capture_logs

from streams.postgres import Connection, Database, Job, QueueOptions, QueueWorker
from streams.postgres.database import connect
from tests.postgres import until
from tests.queue_world import IN_ORDER, LOG, PARCELS, ParcelPacked, done, note, put, until_done
from tests.waiting import eventually_async

QUICK = QueueOptions(poll=0.05)


class HandlerBroke(Exception):
    pass


@pytest.fixture
async def database(database: Database) -> Database:
    await database.pool.execute(LOG)
    return database


def parcels(*names: str, customer: str = "ada") -> list[ParcelPacked]:
    return [ParcelPacked(parcel=name, customer=customer) for name in names]


async def count(database: Database, what: str = "queue_job") -> int:
    found: int = await database.pool.fetchval(f"SELECT count(*) FROM {what}")
    return found


@asynccontextmanager
async def running(worker: QueueWorker) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.promise("database-clock")
async def test_what_a_clock_ahead_put_off_is_counted_from_now(database: Database) -> None:
    """As after a failover from a server whose clock was an hour ahead."""
    options = QueueOptions(poll=0.05)
    await put(database, PARCELS, *parcels("held"))
    gone = QueueWorker(database, PARCELS, note, options=options)
    (held,) = await gone._take(7)
    async with database.transaction() as connection:
        await PARCELS.enqueue(connection, *parcels("ahead"), delay=0.2)
    await database.pool.execute("""
        WITH leases AS (UPDATE queue_lease SET until = until + interval '1 hour')
        UPDATE queue_job SET due = due + interval '1 hour', updated = updated + interval '1 hour'
    """)
    async with database.transaction() as connection:
        late = await PARCELS.enqueue(connection, *parcels("late"), delay=3600)
    async with running(QueueWorker(database, PARCELS, note, options=options)):
        await until(database, "SELECT parcel = 'ahead' FROM done")
        nearer = "SELECT until < clock_timestamp() + interval '601 s' FROM queue_lease WHERE id = 7"
        assert await database.pool.fetchval(nearer)
    due = "SELECT due > clock_timestamp() + interval '1800 s' FROM queue_job WHERE id = $1"
    assert await database.pool.fetchval(due, late), "a delay that was asked for is kept"
    assert await count(database) == len((held, late))


async def test_a_worker_that_sleeps_is_woken_by_the_commit(database: Database) -> None:
    worker = QueueWorker(database, PARCELS, note, options=QueueOptions(poll=3600))
    async with running(worker):
        await until(database, "SELECT asleep FROM queue_wake")
        await put(database, PARCELS, *parcels("a"))
        await until_done(database, "a")
        worker.stop()


async def test_of_many_commits_one_sends_a_notification(database: Database) -> None:
    heard: list[str] = []

    def hear(_connection: object, _pid: int, _channel: str, queue: object) -> None:
        heard.append(str(queue))

    await database.pool.execute("INSERT INTO queue_wake VALUES ('parcels', true)")
    async with database.acquire() as connection:
        await connection.add_listener("steadfaust_queue", hear)
        for number in range(20):
            await put(database, PARCELS, *parcels(str(number)))
        await connection.execute("NOTIFY steadfaust_queue, 'the end'")
        await eventually_async(lambda: "the end" in heard, "the last notification")
        await connection.remove_listener("steadfaust_queue", hear)
    assert heard == ["parcels", "the end"]


@pytest.mark.promise("queue-once")
async def test_a_rolled_back_transaction_enqueues_nothing(database: Database) -> None:
    await database.pool.execute("INSERT INTO queue_wake VALUES ('parcels', true)")
    async with database.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await PARCELS.enqueue(connection, parcels("a")[0])
        await put(database, PARCELS, *parcels("b"))  # does not wait for the other one
        await transaction.rollback()
    assert await count(database) == 1
    assert await database.pool.fetchval("SELECT asleep FROM queue_wake")


@pytest.mark.promise("queue-once")
async def test_several_workers_do_each_job_once_and_in_order(database: Database) -> None:
    keys = [f"customer-{number}" for number in range(7)]
    sent = defaultdict(list)
    for number in range(140):
        sent[keys[number % 7]].append(str(number))
    for start in range(0, 140, 35):
        numbers = range(start, start + 35)
        await put(database, IN_ORDER, *(ParcelPacked(parcel=str(n), customer=keys[n % 7]) for n in numbers))
    under_way: set[str] = set()
    tried: set[int] = set()

    async def fails_at_first_now_and_then(connection: Connection, job: Job) -> None:
        assert job.key not in under_way, "two workers have jobs of one key"
        under_way.add(str(job.key))
        try:
            await note(connection, job)
            if job.id % 13 == 0 and job.id not in tried:
                tried.add(job.id)
                raise HandlerBroke
        finally:
            under_way.discard(str(job.key))

    options = QueueOptions(batch=7, concurrency=2, base=0.05)
    handle = fails_at_first_now_and_then
    workers = [QueueWorker(database, IN_ORDER, handle, options=options, name=f"w-{n}") for n in range(3)]
    async with running(workers[0]), running(workers[1]), running(workers[2]):
        await until(database, "SELECT count(*) = 0 FROM queue_job")
    assert len(tried) >= 10
    assert {key: await done(database, key) for key in keys} == sent
    assert await database.pool.fetchval("SELECT count(DISTINCT pid) FROM done") > 1
    assert await count(database, "queue_lease") == 0


@pytest.mark.promise("queue-once")
async def test_a_killed_process_leaves_its_job_to_another(database: Database, postgres_url: str) -> None:
    await put(database, PARCELS, *parcels("a", "wait", "b"))
    command = [sys.executable, "-m", "tests.integration.queue_process", postgres_url]
    with Popen(command, stdout=PIPE, text=True) as process:  # noqa: ASYNC220 - it only starts
        assert process.stdout is not None
        said = [await asyncio.to_thread(process.stdout.readline) for _ in range(2)]
        assert said == ["a\n", "wait\n"]
        process.kill()
    assert await count(database, "queue_lease") == 1
    worker = QueueWorker(database, PARCELS, note, options=QUICK)
    assert await worker.work_off() == 0
    async with running(worker):
        await until(database, "SELECT count(*) = 0 FROM queue_job")
    assert sorted(await done(database)) == ["a", "b", "wait"]


@pytest.mark.promise("queue-once")
async def test_what_took_longer_than_the_lease_is_rolled_back(database: Database) -> None:
    await put(database, PARCELS, *parcels("a"))

    async def overslept(connection: Connection, job: Job) -> None:
        await note(connection, job)
        await database.pool.execute("UPDATE queue_lease SET until = now() - interval '1 second'")
        assert await QueueWorker(database, PARCELS, note).work_off() == 1

    await QueueWorker(database, PARCELS, overslept).work_off()
    assert await done(database) == ["a"]


async def test_a_lease_is_renewed_while_its_worker_lives(database: Database) -> None:
    await put(database, PARCELS, *parcels("a"))
    go_on = asyncio.Event()

    async def slowly(connection: Connection, job: Job) -> None:
        await note(connection, job)
        await go_on.wait()

    worker = QueueWorker(database, PARCELS, slowly, options=QueueOptions(lease=1.5))
    async with running(worker):
        await until(database, "SELECT until FROM queue_lease")
        first = await database.pool.fetchval("SELECT until FROM queue_lease")
        await until(database, "SELECT until > $1::timestamptz + interval '1.5 s' FROM queue_lease", first)
        go_on.set()
        await until_done(database, "a")


async def test_a_cancelled_worker_gives_its_jobs_back_at_once(database: Database) -> None:
    await put(database, PARCELS, *parcels("a", "b"))
    begun = asyncio.Event()

    async def forever(connection: Connection, job: Job) -> None:
        await note(connection, job)
        begun.set()
        await asyncio.Event().wait()

    async with running(QueueWorker(database, PARCELS, forever)):
        await begun.wait()
    assert await QueueWorker(database, PARCELS, note).work_off() == 2
    assert await done(database) == ["a", "b"]


@pytest.mark.promise("cut-connections")
async def test_a_lost_connection_is_no_failed_try(database: Database) -> None:
    await put(database, PARCELS, *parcels("a", "b"))
    cut: list[int] = []

    async def cut_off(connection: Connection, job: Job) -> None:
        await note(connection, job)
        if not cut:
            cut.append(await connection.fetchval("SELECT pg_backend_pid()"))
            assert await database.pool.fetchval("SELECT pg_terminate_backend($1, 5000)", cut[0])
            await connection.execute("SELECT 1")

    worker = QueueWorker(database, PARCELS, cut_off, options=QueueOptions(lease=600))
    async with running(worker):
        await until_done(database, "a", "b")
    assert len(cut) == 1


@pytest.mark.parametrize("asks", [True, False])
async def test_a_job_that_always_loses_its_connection_fails(database: Database, asks: bool) -> None:
    """As one that is idle in its transaction for too long. Others of its batch are done."""
    await put(database, PARCELS, *parcels("idle", "quick"))

    async def be_idle(connection: Connection, job: Job) -> None:
        if PARCELS.decode(job, ParcelPacked).parcel == "idle":
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 50")
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            await until(database, f"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})")
            if not asks:
                return
        await note(connection, job)

    async with running(QueueWorker(database, PARCELS, be_idle, options=QUICK)):
        # The driver's words depend on the moment at which it learns of it: "cannot switch to state", too.
        await until(
            database,
            "SELECT state = 'failed' AND error SIMILAR TO '%(connection|switch to state)%'"
            " FROM queue_job LIMIT 1",
        )
    assert await done(database) == ["quick"]


async def is_told(told: Sequence[object], what: str) -> None:
    await eventually_async(lambda: any(what in str(each) for each in told), what)


#: Has the server refuse each lease, as one does that cannot work now.
REFUSING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '{code}'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON queue_lease EXECUTE FUNCTION refuse();
"""


@pytest.mark.parametrize(
    "code",
    ["40P01", "40001", "57014", "25006", "53100", "53200", "58030", "55P03", "42501"],
    ids=["deadlock", "conflict", "canceled", "read-only", "disk full", "memory full", "I/O", "lock", "right"],
)
async def test_what_a_server_refuses_for_now_is_tried_again(database: Database, code: str) -> None:
    await database.pool.execute(REFUSING.format(code=code))
    worker = QueueWorker(database, PARCELS, note, options=QUICK)
    with capture_logs() as told:
        async with running(worker):
            await put(database, PARCELS, *parcels("a"))
            await is_told(told, "queue_database_away")
            await database.pool.execute("DROP TRIGGER refuse ON queue_lease")
            await until_done(database, "a")


async def test_a_server_that_was_a_standby_costs_no_try(database: Database, postgres_url: str) -> None:
    """Sessions that began on it stay read-only: the worker goes on by new ones."""
    seen: list[int] = []

    async def noted(connection: Connection, job: Job) -> None:
        seen.append(job.retry)
        await note(connection, job)

    other = await connect(postgres_url, settings={"default_transaction_read_only": "off"})
    name = await other.fetchval("SELECT current_database()")
    await other.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    async with Database(postgres_url, most=3) as standby:
        worker = QueueWorker(standby, PARCELS, noted, options=QUICK)
        with capture_logs() as told:
            async with running(worker):
                await put(database, PARCELS, *parcels("a"))
                await is_told(told, "read-only")
                await other.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
                await until_done(database, "a")
    await other.close()
    assert set(seen) == {0}


async def test_connections_notice_an_end_without_a_word(database: Database, postgres_url: str) -> None:
    listening = await connect(postgres_url)
    async with database.acquire() as pooled:
        for connection in (listening, pooled):
            line = connection._transport.get_extra_info("socket")
            assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert 0 < line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000
    await listening.close()
