"""A network that acknowledges and forwards nothing: whoever waits for PostgreSQL goes on, and says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from chaos.rig.links import Link, LinkFault, LinkFaultKind
from streams.local import loopback
from streams.postgres import Connection, ConsumerInbox, Database, QueueOptions, QueueWorker
from streams.postgres.cleanup import DatabaseCleanup, Retention
from streams.postgres.database import connect
from streams.postgres.errors import DatabaseUnavailable, StatementOverdue
from streams.postgres.relay import RelayOptions
from streams.testing import MemoryPublisher
from tests.queue_world import LOG, PARCELS, ParcelPacked, done, note, put, until_done
from tests.relays import by_aggregate, drained, first_time, new_outbox, publish, relaying
from tests.waiting import BOUND, eventually_async

pytestmark = pytest.mark.promise("silent-network")


class SilentWay:
    """`url` leads to the database; between `fall_silent` and `speak` nothing passes.

    Attributes:
        held: chunks that were swallowed in the last silence.
    """

    def __init__(self, url: str, port: int) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self.link = Link(port, parts.port)
        place = f"{parts.netloc.rpartition('@')[0]}@{loopback.HOST}:{port}"
        self.url = parts._replace(netloc=place, query="sslmode=disable").geturl()
        self._fault: LinkFault | None = None
        self._last = LinkFault(LinkFaultKind.BLACKHOLE)

    @property
    def held(self) -> int:
        return self._last.count

    def fall_silent(self) -> None:
        self._fault = self._last = LinkFault(LinkFaultKind.BLACKHOLE)
        self.link.begin(self._fault)

    def speak(self) -> None:
        if self._fault is not None:
            self.link.end(self._fault)
            self._fault = None


@asynccontextmanager
async def silent_way(url: str) -> AsyncIterator[SilentWay]:
    """Open for the time of the block; it speaks at first."""
    reserved = loopback.reserve()
    reserved.release()
    way = SilentWay(url, reserved.port)
    await way.link.listen()
    try:
        yield way
    finally:
        way.speak()
        way.link.close()


QUICK = 0.5


@pytest.fixture
async def way(postgres_url: str) -> AsyncIterator[SilentWay]:
    async with silent_way(postgres_url) as way:
        yield way


@asynccontextmanager
async def bounded(way: SilentWay, **more: int) -> AsyncIterator[Database]:
    async with Database(way.url, least=0, patience=QUICK, bound=QUICK, **more) as database:
        yield database


async def heard(logs: list[dict[str, object]], event: str) -> None:
    await eventually_async(lambda: any(each["event"] == event for each in logs), f"{event} is in the log")


async def test_a_queue_worker_goes_on_after_a_silence(database: Database, way: SilentWay) -> None:
    await database.pool.execute(LOG)
    options = QueueOptions(poll=0.05, lease=1.0, concurrency=1)
    with capture_logs() as logs:
        async with bounded(way) as silent, asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
            worker = QueueWorker(silent, PARCELS, note, options=options)
            group.create_task(worker.run())
            await put(database, PARCELS, ParcelPacked(parcel="a"))
            await until_done(database, "a")
            way.fall_silent()
            await put(database, PARCELS, ParcelPacked(parcel="b"))
            await heard(logs, "queue_database_away")
            await heard(logs, "queue_pulse_lost")
            assert way.held
            assert await done(database) == ["a"]
            way.speak()
            await until_done(database, "a", "b")
            worker.stop()


async def test_an_inbox_is_told_of_a_silence(database: Database, way: SilentWay) -> None:
    async def add(connection: Connection, _: bytes) -> None:
        way.fall_silent()  # in the middle of the transaction
        await connection.execute("SELECT 1")

    async def add_again(connection: Connection, _: bytes) -> str:
        await connection.execute("SELECT 1")
        return "added"

    async with bounded(way) as silent, asyncio.timeout(BOUND):
        inbox = ConsumerInbox(silent, "tally")
        with pytest.raises(DatabaseUnavailable, match="did not answer in time, and the connection was cut"):
            await inbox.process_idempotent("a", "t", "t", b"", add)
        assert way.held
        way.speak()
        assert await inbox.process_idempotent("a", "t", "t", b"", add_again) == "added"
    async with database.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM consumer_inbox") == 1


async def test_a_cleanup_goes_on_after_a_silence(database: Database, way: SilentWay) -> None:
    del database
    with capture_logs() as logs:
        async with bounded(way) as silent:
            cleaning = asyncio.create_task(
                DatabaseCleanup(silent, Retention(outbox=1.0, inbox=1.0, duplicates_within=0.0)).run(0.1)
            )
            async with silent.acquire():
                pass
            way.fall_silent()
            await heard(logs, "cleanup_failed")
            assert way.held
            way.speak()
            assert not cleaning.done()
            cleaning.cancel()
            await asyncio.wait([cleaning])


async def test_a_relay_goes_on_after_a_silence(database: Database, way: SilentWay) -> None:
    outbox, publisher = new_outbox(), MemoryPublisher()
    options = RelayOptions(poll=0.05, balance=0.1, lease=2.0, outage_pause=0.2)
    with capture_logs() as logs:
        async with relaying(way.url, publisher, options):
            async with database.acquire() as connection:
                await publish(outbox, connection, ("o-1", 1))
            await drained(database)
            way.fall_silent()
            async with database.acquire() as connection:
                await publish(outbox, connection, ("o-1", 2))
            await heard(logs, "relay_without_database")
            assert way.held
            way.speak()
            await drained(database)
    assert first_time(by_aggregate(publisher.written)["o-1"]) == [1, 2]


async def test_one_silence_has_all_connections_of_a_pool_made_again(way: SilentWay) -> None:
    """Four idle connections that are all silent cost one bound, not four."""

    async def all_of(silent: Database) -> set[int]:
        arrived = asyncio.Barrier(4)

        async def one() -> int:
            async with silent.acquire() as connection:
                await arrived.wait()
                return int(await connection.fetchval("SELECT pg_backend_pid()"))

        return set(await asyncio.gather(*(one() for _ in range(4))))

    async with bounded(way, most=4) as silent:
        before = await all_of(silent)
        way.fall_silent()
        with pytest.raises(DatabaseUnavailable):
            async with silent.acquire() as connection:
                await connection.fetchval("SELECT 1")
        way.speak()
        assert not await all_of(silent) & before


async def test_closing_is_bounded_in_a_silence(way: SilentWay) -> None:
    async with asyncio.timeout(BOUND):
        async with bounded(way) as silent:
            async with silent.acquire() as connection:
                await connection.fetchval("SELECT 1")
            way.fall_silent()
        assert way.held


async def test_a_server_frees_what_a_silent_client_held(database: Database, way: SilentWay) -> None:
    """The client has cut its connection, the server does not hear of it: it ends the transaction itself."""
    waits = "SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"
    async with Database(way.url, least=0, patience=QUICK, bound=0.2) as silent:
        with pytest.raises(DatabaseUnavailable):  # noqa: PT012 - the context manager is what raises
            async with silent.transaction() as connection:
                await connection.execute("SELECT pg_advisory_xact_lock(7)")
                way.fall_silent()
                await connection.execute("SELECT 1")
        await eventually_async(lambda: database.pool.fetchval(waits), "the lock is free")


async def test_a_passed_bound_cuts_a_connection_of_its_own(postgres_url: str) -> None:
    connection = await connect(postgres_url, bound=0.2)
    with pytest.raises(StatementOverdue, match="SELECT pg_sleep"):
        await connection.execute("-- a comment\nSELECT pg_sleep(60)")
    assert connection.is_closed()


async def test_a_statement_may_take_as_long_as_its_caller_says(postgres_url: str) -> None:
    async with Database(postgres_url, bound=0.2) as database, database.acquire() as connection:
        assert await connection.fetchval("SELECT 1 FROM pg_sleep(0.5)", timeout=BOUND) == 1


async def test_a_timeout_of_the_caller_stays_the_callers(postgres_url: str) -> None:
    async with Database(postgres_url) as database:
        with pytest.raises(TimeoutError) as raised:  # noqa: PT012 - the context manager is what raises
            async with database.acquire() as connection:
                await connection.fetchval("SELECT 1")
                raise TimeoutError("of something else")
        assert not isinstance(raised.value, DatabaseUnavailable)


async def test_a_pool_writes_no_traceback_while_its_server_is_away(
    way: SilentWay, caplog: pytest.LogCaptureFixture
) -> None:
    async with Database(way.url, least=1, patience=QUICK) as database:
        cut = LinkFault(LinkFaultKind.CUT)
        way.link.begin(cut)
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                async with database.acquire() as connection:
                    await connection.fetchval("SELECT 1")
        way.link.end(cut)
        async with database.acquire() as connection:
            assert await connection.fetchval("SELECT 1") == 1
    assert [record for record in caplog.records if record.exc_info] == []
