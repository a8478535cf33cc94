"""Connections to PostgreSQL that are all cut, at any message and in any manner: whoever uses them goes on,
and nothing is lost or done twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import cycle

import pytest
from structlog.testing import capture_logs

from agents.api.projection import Projection
from agents.settings import OrderSettings
from streams.postgres import Connection, ConsumerInbox, Database, Job, QueueOptions, QueueWorker
from streams.postgres.errors import DatabaseUnavailable
from streams.postgres.queue import lease_heartbeat, worker
from streams.testing import MemoryPublisher
from tests.cuts import Manner, Way, nothing_untold
from tests.effort import is_all
from tests.integration.told_orders import confirmed
from tests.orders_shop import shop_on
from tests.queue_world import IN_ORDER, LOG, PARCELS, ParcelPacked, done, note, put
from tests.relays import by_aggregate, drained, first_time, new_outbox, publish, relaying
from tests.waiting import BOUND, eventually_async

pytestmark = pytest.mark.promise(
    "cut-connections",
    "reset, ended, in half a message, after the server's last words and between these and the end",
)

#: Uses PostgreSQL the way that is cut, and looks at what came of it by the other one.
Use = Callable[[Database, str], Awaitable[None]]
#: Of so many messages one is cut at, each time in another manner.
STRIDE, STRIDE_OF_ALL = 23, 3
MOST = 2000


class NoStamp(Exception):
    pass


async def use_queue(database: Database, url: str) -> None:
    failed: list[int] = []

    async def fail_once(connection: Connection, job: Job) -> None:
        await note(connection, job)
        if PARCELS.decode(job, ParcelPacked).parcel == "b" and not failed:
            failed.append(job.id)
            raise NoStamp

    async with Database(url, least=0, most=4) as cut_off:
        options = QueueOptions(poll=0.05, base=0.01, concurrency=2)
        working = QueueWorker(cut_off, IN_ORDER, fail_once, options=options)
        task = asyncio.create_task(working.run())

        async def are_done(count: int) -> bool:
            return task.done() or len(await done(database)) == count

        try:
            await put(database, IN_ORDER, *(ParcelPacked(parcel=name) for name in "ab"))
            await eventually_async(lambda: are_done(2), "two are done")
            await put(database, IN_ORDER, ParcelPacked(parcel="c"))
            await eventually_async(lambda: are_done(3), "three are done")
            working.stop()
            await task  # raises what has ended it
        finally:
            task.cancel()
            await asyncio.wait([task])
    assert await done(database) == ["a", "b", "c"]
    assert await database.pool.fetchval("SELECT count(*) FROM queue_job") == 0


async def use_relay(database: Database, url: str) -> None:
    outbox, publisher = new_outbox(), MemoryPublisher()
    async with relaying(url, publisher):
        for number in range(2):
            async with database.acquire() as connection:
                await publish(outbox, connection, ("o-1", number), ("o-2", number))
            await drained(database)
    found = by_aggregate(publisher.written)
    assert {order: first_time(numbers) for order, numbers in found.items()} == {"o-1": [0, 1], "o-2": [0, 1]}


async def again(work: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await work()
        except DatabaseUnavailable:
            continue
        return


async def use_inbox(database: Database, url: str) -> None:
    async def add(connection: Connection, payload: bytes) -> None:
        await connection.execute("INSERT INTO done (parcel) VALUES ($1)", payload.decode())

    async with Database(url, least=0, most=2) as cut_off:
        inbox = ConsumerInbox(cut_off, "tally")
        for name in "ab":
            await again(lambda name=name: inbox.process_idempotent(name, "t", "t", name.encode(), add))  # type: ignore[misc]
    assert await done(database) == ["a", "b"]


async def use_projection(database: Database, url: str) -> None:
    async with Database(url, least=0, most=2) as cut_off:
        projection = Projection(OrderSettings(bootstrap="nowhere:1"), cut_off)
        await again(lambda: projection.take([confirmed("o-1"), confirmed("o-2")]))
    statuses = await database.pool.fetch("SELECT id, status FROM orders ORDER BY id")
    assert [tuple(row) for row in statuses] == [("o-1", "confirmed"), ("o-2", "confirmed")]


async def use_api(database: Database, url: str) -> None:
    async with shop_on(url) as shop:
        for key in ("k-1", "k-2"):
            while (answer := await shop.place(key)).status_code != 202:
                assert answer.status_code == 503
                assert answer.json()["type"] == "urn:problem:unavailable"
            while (found := await shop.client.get(answer.headers["location"])).status_code != 200:
                assert found.status_code == 503
    for table in ("orders", "outbox", "idempotency_keys"):
        assert await database.pool.fetchval(f"SELECT count(*) FROM {table}") == 2


@pytest.mark.parametrize("use", [use_queue, use_relay, use_inbox, use_projection, use_api])
async def test_whoever_uses_connections_that_are_cut_goes_on(
    orders_url: str, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_AGAIN", 0.01)
    monkeypatch.setattr(lease_heartbeat, "_AGAIN", 0.01)
    tables = "done, queue_job, queue_lease, queue_wake, consumer_inbox, outbox, orders, idempotency_keys"
    manners = cycle(Manner)
    with capture_logs():
        async with Database(orders_url) as database:
            await database.pool.execute(LOG)
            for place in range(1, MOST, STRIDE_OF_ALL if is_all() else STRIDE):
                await database.pool.execute(f"TRUNCATE {tables}")
                way = Way(orders_url, place, next(manners))
                async with nothing_untold(), asyncio.timeout(BOUND), way:
                    await use(database, way.url)
                if not way.was_cut:
                    break
    assert not way.was_cut, "it never came to its end"
    assert place > STRIDE, "nothing was cut"
