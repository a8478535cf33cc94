"""PostgreSQL fails over: a standby is promoted, and the former primary lives on."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agents.api.projection import Projection
from agents.settings import OrderSettings
from streams.kafka.clients import KafkaOptions
from streams.local import Stack
from streams.postgres import (
    LIBRARY,
    ConsumerInbox,
    Database,
    MigrationSet,
    QueueOptions,
    QueueWorker,
    migrate,
)
from streams.postgres import primary as primaries
from streams.postgres.database import connect
from streams.postgres.errors import DatabaseUnavailable
from streams.postgres.relay.outbox_publisher import KafkaPublisher
from tests.failover import Address, Pair, Server, a_pair
from tests.integration.told_orders import confirmed
from tests.orders_shop import MIGRATIONS, Shop, shop_on
from tests.postgres import connected, migrated
from tests.queue_world import LOG, PARCELS, ParcelPacked, note
from tests.relays import ANNOUNCEMENTS, QUICK, Step, new_outbox, numbers_in, publish, relaying, with_topics
from tests.waiting import eventually_async

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.promise("postgres-failover", "without the check, writes stay at the former primary"),
]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with a_pair(tmp_path) as pair:
        yield pair


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primaries, "EVERY", 0.2)


def as_of(number: int, folder: Path) -> MigrationSet:
    """The library's migrations up to this one."""
    folder.mkdir()
    for path in sorted(LIBRARY.folder.glob("*.sql"))[:number]:
        (folder / path.name).write_text(path.read_text())
    return LIBRARY._replace(folder=folder)


async def promoted(pair: Pair) -> Server:
    await pair.in_step()
    await pair.standby.promote()
    return pair.standby


async def test_the_outbox_can_be_written_after_a_failover(pair: Pair) -> None:
    await migrated(pair.primary.url)
    server = await promoted(pair)
    async with Database(server.url) as database, database.acquire() as connection:
        await publish(new_outbox(), connection, ("o", 1))
        assert await connection.fetchval("SELECT count(*) FROM outbox") == 1
        assert await connection.fetchval("SELECT last_value FROM outbox_wakeup") > 0


async def test_nothing_of_ours_is_unlogged(pair: Pair) -> None:
    await migrated(pair.primary.url, MIGRATIONS)
    unlogged = "SELECT array_agg(relname::text) FROM pg_class WHERE relpersistence = 'u'"
    assert await pair.primary.ask(unlogged) is None


async def test_a_migration_mends_what_a_failover_has_broken(pair: Pair, tmp_path: Path) -> None:
    async with connected(pair.primary.url) as connection:
        await migrate(connection, [as_of(9, tmp_path / "before")])
        await connection.execute("CREATE ROLE writer")
        await connection.execute("GRANT USAGE ON SEQUENCE outbox_wakeup TO writer")
    server = await promoted(pair)
    async with connected(server.url) as connection:
        with pytest.raises(Exception, match="bad magic number"):
            await connection.fetchval("SELECT nextval('outbox_wakeup')")
        assert (await migrate(connection))[0].number == 10
        await connection.execute("SET ROLE writer")
        assert await connection.fetchval("SELECT nextval('outbox_wakeup')") == 1


class Parts:
    """All that writes to PostgreSQL, at one address, with sessions that are open."""

    def __init__(self, url: str, shop: Shop, database: Database) -> None:
        self.url = url
        self.shop = shop
        self.database = database
        self._outbox = new_outbox()
        self._inbox = ConsumerInbox(database, "failover")
        self._projection = Projection(OrderSettings(bootstrap="nowhere:1"), database)

    async def write(self, name: str) -> None:
        """Do each thing once, again until it is done: what an id names happens once."""
        await self._insist(self._publish, name)
        await self._insist(self._handle, name)
        await self._insist(self._project, name)
        await eventually_async(lambda: self._is_placed(name), f"order {name} is placed")

    async def _publish(self, name: str) -> None:
        async with self.database.acquire() as connection:
            await publish(self._outbox, connection, (name, 1))

    async def _handle(self, name: str) -> None:
        async def put(connection: Any, payload: Any) -> None:
            await PARCELS.enqueue(connection, ParcelPacked(parcel=payload, customer="ada"))

        await self._inbox.process_idempotent(name, "topic", "type", name, put)

    async def _project(self, name: str) -> None:
        await self._projection.take([confirmed(f"told-{name}")])

    async def _is_placed(self, name: str) -> bool:
        return (await self.shop.place(name, order_id=f"placed-{name}")).status_code == 202

    async def _insist(self, work: Any, name: str) -> None:
        async def is_done() -> bool:
            try:
                await work(name)
            except DatabaseUnavailable:  # a session was cut
                return False
            return True

        await eventually_async(is_done, f"{work.__name__} {name}")


@asynccontextmanager
async def parts_at(url: str, bootstrap: str) -> AsyncIterator[Parts]:
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(Database(url, name="failover parts"))
        await database.pool.execute(LOG)
        shop = await stack.enter_async_context(shop_on(url))
        publisher = KafkaPublisher(bootstrap, ANNOUNCEMENTS, KafkaOptions())
        await stack.enter_async_context(relaying(url, publisher, QUICK))
        worker = QueueWorker(database, PARCELS, note, options=QueueOptions(poll=3600, concurrency=1))
        running = asyncio.create_task(worker.run())
        stack.push_async_callback(asyncio.wait, [running])
        stack.callback(running.cancel)
        yield Parts(url, shop, database)


async def has_all(server: Server, name: str) -> bool:
    """Whether all parts have done their work on this server."""
    found = await server.ask(
        "SELECT (SELECT count(*) FROM outbox WHERE id LIKE '%' || $1 || ':%' AND published_at IS NOT NULL)"
        " + (SELECT count(*) FROM done WHERE parcel = $1)"
        " + (SELECT count(*) FROM orders WHERE id IN ('told-' || $1, 'placed-' || $1))",
        name,
    )
    return found == 5


SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database()
  AND application_name IN ('failover parts', 'steadfaust', 'steadfaust relay')
  AND pid <> pg_backend_pid()
"""


_OTHERS = pytest.mark.verify(
    "test_every_part_goes_over_to_the_promoted_server has each way and each kind of former primary once"
)


@pytest.mark.parametrize(
    ("way", "former"),
    [
        ("one address", "writable"),
        ("two hosts", "read-only"),
        pytest.param("one address", "read-only", marks=_OTHERS),
        pytest.param("two hosts", "writable", marks=_OTHERS),
    ],
)
@pytest.mark.usefixtures("quick_looks")
async def test_every_part_goes_over_to_the_promoted_server(
    pair: Pair, kafka: Stack, former: str, way: str
) -> None:
    await migrated(pair.primary.url, MIGRATIONS)
    bootstrap = await with_topics(kafka.bootstrap, Step.TOPIC, "orders.order.placed.v1")
    prefix = f"{former}-{way}".replace(" ", "-")
    async with Address(pair.primary) as address:
        url = address.url if way == "one address" else pair.urls
        async with parts_at(url, bootstrap) as parts:
            await parts.write(f"{prefix}-before")
            await eventually_async(lambda: has_all(pair.primary, f"{prefix}-before"), "all before")
            server = await promoted(pair)
            address.server = server
            if former == "read-only":
                await pair.primary.become_read_only()
            await eventually_async(
                lambda: pair.primary.ask(f"SELECT ({SESSIONS}) = 0"), "no session is left at the former"
            )
            await parts.write(f"{prefix}-after")
            await eventually_async(lambda: has_all(server, f"{prefix}-after"), "all after")
    came = await numbers_in(kafka.bootstrap, Step.TOPIC)
    assert [came[f"{prefix}-{when}"] for when in ("before", "after")] == [[1], [1]]


@pytest.mark.verify("the control of test_every_part_goes_over_to_the_promoted_server")
async def test_without_the_look_writes_stay_at_the_former_primary(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: what it passes by."""
    monkeypatch.setattr(primaries, "EVERY", 3600.0)
    await migrated(pair.primary.url)
    async with Address(pair.primary) as address, Database(address.url) as database:
        await database.pool.fetchval("SELECT 1")
        address.server = await promoted(pair)
        async with database.acquire() as connection:
            await publish(new_outbox(), connection, ("lost", 1))
    assert await pair.primary.ask("SELECT count(*) FROM outbox") == 1
    assert await pair.standby.ask("SELECT count(*) FROM outbox") == 0


async def test_a_former_primary_is_not_connected_to_again(pair: Pair, quick_looks: None) -> None:
    async with Address(pair.primary) as address, Database(address.url) as database:
        address.server = await promoted(pair)
        port = f"SELECT inet_server_port() = {pair.standby.port}"
        await eventually_async(lambda: asks(database, port), "the pool is at the new primary")
        address.server = pair.primary
        await database.pool.expire_connections()
        with pytest.raises(DatabaseUnavailable, match="leads to a former primary"):
            async with database.acquire():
                pass


async def asks(database: Database, question: str) -> bool:
    try:
        async with database.acquire() as connection:
            return bool(await connection.fetchval(question))
    except DatabaseUnavailable:
        return False


async def test_of_two_writable_hosts_the_one_promoted_last_is_taken(pair: Pair) -> None:
    server = await promoted(pair)
    connection = await connect(pair.urls)
    try:
        assert await connection.fetchval("SELECT inet_server_port()") == server.port
    finally:
        await connection.close()
