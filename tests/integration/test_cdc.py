"""The relay by change data capture, on a real PostgreSQL, Kafka Connect with Debezium, and Kafka."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count as counter
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

from streams.claims.checks import ClaimChecks
from streams.local import Stack, local_stack
from streams.model.codecs import Schemas, avro
from streams.model.message import Message
from streams.model.schema_versions import nothing_frozen
from streams.ports import Record
from streams.positions.declared import TopicSpec
from streams.postgres import Outbox, migrate
from streams.postgres.cdc import slot_lag
from streams.postgres.database import connect
from streams.postgres.outbox.operations import republish
from streams.postgres.relay import After
from streams.runtime.client import Producer, TopicReader
from streams.runtime.kafka.topics import KafkaTopics
from streams.runtime.relay import RelayService
from streams.settings import Settings
from streams.testing.blobs import MemoryBlobs
from tests.waiting import eventually_async

pytestmark = pytest.mark.stack

CODECS = avro(nothing_frozen, Schemas())
CLAIMS = ClaimChecks(MemoryBlobs(), bucket=MemoryBlobs().bucket)
_orders = counter(1)


class Placed(Message, frozen=True, kw_only=True):
    TOPIC = "shop.order.placed.v1"
    order: str
    number: int

    @property
    def key(self) -> str:
        return self.order


class Scanned(Placed, frozen=True, kw_only=True):
    """Of a binary kind: its payload is an object."""

    BINARY = True


class Ground(NamedTuple):
    stack: Stack
    outbox: Outbox

    @property
    def postgres(self) -> str:
        return self.stack.url("postgres")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with local_stack(tmp_path_factory.mktemp("cdc"), databases=["orders"], cdc=True) as stack:
        asyncio.run(prepared(stack))
        yield Ground(stack, Outbox(CODECS, source="shop"))


async def prepared(stack: Stack) -> None:
    connection = await connect(stack.url("postgres"))
    await migrate(connection)
    await connection.close()
    async with KafkaTopics(stack.bootstrap) as topics:
        announcements = Settings().layout().announcements
        await topics.create([TopicSpec(Placed.TOPIC, 4, 1), TopicSpec(announcements, 1, 1)])


@asynccontextmanager
async def relaying(ground: Ground, *, after: After = After.MARK) -> AsyncIterator[RelayService]:
    settings = Settings(
        postgres_url=ground.postgres,
        bootstrap=ground.stack.bootstrap,
        app_id="steadfaust",
        outbox="cdc",
        outbox_after=after.value,
        connect_url=ground.stack.url("connect"),
    )
    service = RelayService(settings)
    await service.start()
    try:
        yield service
        assert service.failure is None
    finally:
        await service.stop()


class ByReference(NamedTuple):
    """A message whose payload is in the object store."""

    key: str
    reference: bytes


async def scan(ground: Ground) -> ByReference:
    """Publish one by a transaction of its own."""
    order, outbox = new_order(), Outbox(CODECS, source="shop", claims=CLAIMS)
    connection = await connect(ground.postgres)
    try:
        async with outbox.transaction(connection) as tx:
            tx.publish(Scanned(order=order, number=1))
    finally:
        await connection.close()
    return ByReference(order, (tx.rows[0].ce_dataref or "").encode())


def new_order() -> str:
    return f"order-{next(_orders)}"


async def place(ground: Ground, order: str, numbers: Collection[int], *, pause: float = 0.0) -> list[str]:
    """One transaction for each; every third is tried before and rolled back. The ids of what committed."""
    connection = await connect(ground.postgres)
    ids = []
    try:
        for number in numbers:
            if number % 3 == 0:
                with suppress(KeyError):
                    async with connection.transaction():
                        async with ground.outbox.transaction(connection) as tx:
                            tx.publish(Placed(order=order, number=-number))
                        raise KeyError("rolled back")
            async with ground.outbox.transaction(connection) as tx:
                ids.append(tx.publish(Placed(order=order, number=number)))
            await asyncio.sleep(pause)
    finally:
        await connection.close()
    return ids


async def arrivals(
    ground: Ground, orders: Collection[str], until: Callable[[list[Record]], bool]
) -> list[Record]:
    """The records of these orders, in the order of each partition, once they are as they should be."""
    keys = {order.encode() for order in orders}
    found: list[Record] = []
    async with TopicReader(ground.stack.bootstrap, [Placed.TOPIC]) as reader:
        while not until(found):
            found += [record for record in await reader.fetch() if record.key in keys]
    return found


def ids_by_order(records: Collection[Record]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for record in records:
        assert record.key is not None
        found[record.key.decode()].append(dict(record.headers)["ce_id"].decode())
    return found


def said(record: Record) -> dict[str, bytes]:
    """Its headers; a column without a value is a header without one."""
    return {name: value for name, value in record.headers if value is not None}


def number_in(record: Record) -> int:
    assert record.value is not None
    return int(CODECS(Placed, Placed.TOPIC).decode(record.value, None).number)


@pytest.mark.verify("half a minute: it starts Connect")
async def test_what_commits_arrives_once_and_in_order(ground: Ground) -> None:
    orders = [new_order() for _ in range(4)]
    before = {order: await place(ground, order, [0]) for order in orders}  # nobody relays yet
    async with relaying(ground):
        placed = await asyncio.gather(*(place(ground, order, range(1, 40)) for order in orders))
        expected = {order: before[order] + ids for order, ids in zip(orders, placed, strict=True)}
        records = await arrivals(ground, orders, lambda found: len(found) >= 160)
        assert ids_by_order(records) == expected

        by_reference = await scan(ground)
        (large,) = await arrivals(ground, [by_reference.key], bool)
        assert (large.value, said(large)["ce_dataref"]) == (b"", by_reference.reference)
        assert CODECS(Scanned, Placed.TOPIC).decode(await CLAIMS.check_out(said(large)), None) == Scanned(
            order=by_reference.key, number=1
        )
        await until_marked(ground)

    ours, last = new_order(), records[-1]
    async with Producer(ground.stack.bootstrap, CODECS, source="shop") as producer:
        await producer.send(Placed(order=ours, number=39), message_id="by-a-producer")
    (theirs,) = await arrivals(ground, [ours], bool)
    codec = CODECS(Placed, Placed.TOPIC)
    assert (
        codec.decode(bytes(last.value or b""), None).number
        == codec.decode(bytes(theirs.value or b""), None).number
    )
    assert list(said(last)) == list(said(theirs))
    same = {"ce_specversion", "ce_type", "ce_source", "schema-fingerprint"}
    assert {name: said(last)[name] for name in same} == {name: said(theirs)[name] for name in same}
    assert said(last)["ce_subject"] == last.key


@pytest.mark.verify("half a minute of kills")
async def test_connect_that_is_killed_twice_loses_and_doubles_nothing(ground: Ground) -> None:
    orders = [new_order() for _ in range(4)]
    async with relaying(ground):
        placing = [asyncio.create_task(place(ground, each, range(400), pause=0.02)) for each in orders]
        for _ in range(2):
            await arrivals(ground, orders, lambda found: len(found) > 20)
            await asyncio.to_thread(ground.stack.stop_process, "connect")
            await asyncio.to_thread(ground.stack.start_process, "connect")
        expected = dict(zip(orders, await asyncio.gather(*placing), strict=True))
        records = await arrivals(ground, orders, lambda found: len(found) >= 1600)
    assert ids_by_order(records) == expected


@pytest.mark.verify("a minute: the server drops a slot at its next checkpoint")
async def test_rows_behind_a_dropped_slot_are_read_from_the_table(ground: Ground) -> None:
    order = new_order()
    connection = await connect(ground.postgres)
    async with relaying(ground):
        first = await place(ground, order, [1])
        await arrivals(ground, [order], bool)

    await asyncio.to_thread(ground.stack.stop_process, "connect")
    await connection.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    await connection.execute("SELECT pg_reload_conf()")
    second = await place(ground, order, [2, 3])
    await must_be_told(ground, "nothing reads the replication slot")
    await must_be_degraded(ground, "nothing reads the replication slot")
    await connection.execute("CREATE TABLE filler AS SELECT repeat('x', 100) FROM generate_series(1, 400000)")

    async def dropped() -> bool:
        await connection.execute("SELECT pg_switch_wal()")
        await connection.execute("CHECKPOINT")
        lag = await slot_lag(connection)
        assert lag is not None
        return lag.is_lost

    await eventually_async(dropped, "the slot is dropped")
    await must_be_told(ground, "the replication slot is lost", "`steadfaust outbox relay`")
    await connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
    await connection.execute("SELECT pg_reload_conf()")
    await asyncio.to_thread(ground.stack.start_process, "connect")
    async with relaying(ground):
        third = await place(ground, order, [4])
        records = await arrivals(
            ground, [order], lambda found: {*second, *third} <= set(ids_by_order(found)[order])
        )
    await connection.close()
    arrived = list(dict.fromkeys(ids_by_order(records)[order]))
    assert arrived == [*first, *second, *third]


@pytest.mark.verify("half a minute: it starts Connect; polling relays do the same in make test")
@pytest.mark.parametrize(("after", "archived"), [(After.DELETE, 0), (After.ARCHIVE, 3)])
async def test_a_relayed_row_is_deleted_or_archived_as_by_polling(
    ground: Ground, after: After, archived: int
) -> None:
    order = new_order()
    async with relaying(ground, after=after):
        placed = await place(ground, order, [1, 2, 4])
        records = await arrivals(ground, [order], lambda found: len(found) >= 3)
        gone = "SELECT count(*) = 0 FROM outbox WHERE aggregate_id = $1"
        await eventually_async(lambda: ask(ground, gone, order), "the rows are gone")
    assert ids_by_order(records) == {order: placed}
    kept = "SELECT count(*) FROM outbox_archive WHERE aggregate_id = $1"
    assert await ask(ground, kept, order) == archived


@pytest.mark.verify("half a minute: it starts Connect; polling relays do the same in make test")
async def test_a_republished_row_comes_again_under_its_id(ground: Ground) -> None:
    order = new_order()
    async with relaying(ground):
        first, second = await place(ground, order, [1, 2])
        await until_marked(ground)
        connection = await connect(ground.postgres)
        (row,) = await republish(connection, [first])
        await connection.close()
        assert row["published_at"] is not None
        records = await arrivals(ground, [order], lambda found: len(found) >= 3)
        await until_marked(ground)
    assert ids_by_order(records) == {order: [first, second, first]}


async def must_be_told(ground: Ground, *words: str) -> None:
    """By `steadfaust outbox status`."""
    steadfaust = str(Path(sys.executable).with_name("steadfaust"))
    process = await asyncio.create_subprocess_exec(
        steadfaust, "outbox", "status", "--url", ground.postgres, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 4
    assert all(each in said.decode() for each in words)


async def must_be_degraded(ground: Ground, words: str) -> None:
    """By the health and the metrics of a relay, while Connect is down."""
    async with relaying(ground) as service:

        async def told() -> bool:
            reasons = [each for each in (await service.health.report()).reasons if each.startswith("slot: ")]
            return bool(reasons) and words in reasons[0]

        await eventually_async(told, words)
        figures = {
            name: service.registry.get_sample_value(f"outbox_slot_{name}") or 0
            for name in ("active", "retained_bytes", "beginnings")
        }
    assert figures["active"] == 0
    assert figures["retained_bytes"] > 0
    assert figures["beginnings"] > 0


async def ask(ground: Ground, question: str, *arguments: object) -> Any:
    connection = await asyncpg.connect(ground.postgres)
    try:
        return await connection.fetchval(question, *arguments)
    finally:
        await connection.close()


async def until_marked(ground: Ground) -> None:
    marked = "SELECT count(*) = 0 FROM outbox WHERE published_at IS NULL"
    await eventually_async(lambda: ask(ground, marked), "every row is marked")
