"""What publishing by the outbox means, held by the one in memory and by PostgreSQL alike."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest

from streams.errors import BlobsUnavailable, TooLarge, Unencodable
from streams.model.claim import VALUE, with_claim
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import Schemas, avro
from streams.model.message import Message
from streams.model.schema_versions import nothing_frozen
from streams.ports import Outgoing
from streams.postgres import Database, Outbox, OutboxTransaction
from streams.postgres.errors import MessageIdTaken
from streams.postgres.outbox import OutboxRow, record_of
from streams.testing import MemoryOutbox
from streams.testing.blobs import MemoryBlobs

CODECS = avro(nothing_frozen, Schemas())


class Placed(Message, frozen=True, kw_only=True):
    TOPIC = "shop.order.placed.v1"
    order: str
    pieces: int = 1
    note: str = ""

    @property
    def key(self) -> str:
        return self.order


class Scanned(Placed, frozen=True, kw_only=True):
    BINARY = True


class MemoryWorld:
    def __init__(self) -> None:
        self.outbox = MemoryOutbox(CODECS, source="shop", limit=10_000)

    def transaction(self) -> AbstractAsyncContextManager[OutboxTransaction]:
        return self.outbox.transaction()

    async def records(self) -> list[Outgoing]:
        return self.outbox.records(Placed.TOPIC)


class PostgresWorld:
    def __init__(self, database: Database) -> None:
        self.outbox = Outbox(CODECS, source="shop", limit=10_000)
        self.database = database

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[OutboxTransaction]:
        async with self.database.acquire() as connection, self.outbox.transaction(connection) as tx:
            yield tx

    async def records(self) -> list[Outgoing]:
        return [record_of(row) for row in await stored(self.database)]


World = MemoryWorld | PostgresWorld


async def stored(database: Database) -> list[OutboxRow]:
    async with database.acquire() as connection:
        rows = await connection.fetch("SELECT *, 0.0::float8 AS age FROM outbox ORDER BY position")
    return [OutboxRow(**{name: row[name] for name in OutboxRow._fields}) for row in rows]


@pytest.fixture
async def world(url_or_memory: str) -> AsyncIterator[World]:
    if not url_or_memory:
        yield MemoryWorld()
        return
    async with Database(url_or_memory) as database:
        yield PostgresWorld(database)


async def test_what_is_published_is_there_in_order_after_the_commit(world: World) -> None:
    async with world.transaction() as tx:
        tx.publish(Placed(order="o-1", pieces=1))
        tx.publish(Placed(order="o-2", pieces=2))
        tx.publish(Placed(order="o-1", pieces=3))
        assert await world.records() == []
    codec = CODECS(Placed, Placed.TOPIC)
    records = await world.records()
    assert [codec.decode(record.value or b"", None).pieces for record in records] == [1, 2, 3]
    assert [record.key for record in records] == [b"o-1", b"o-2", b"o-1"]


async def test_a_record_has_the_headers_that_a_producer_gives_it(world: World) -> None:
    async with world.transaction() as tx:
        own = tx.publish(Placed(order="o-1"), "m-1", correlation_id="o-1", traceparent="00-aa-bb-01")
    (record,) = await world.records()
    headers = list(record.headers)
    assert own == "m-1"
    time = dict(headers)["ce_time"]
    assert headers == [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"m-1"),
        ("ce_type", b"shop.order.placed.v1"),
        ("ce_source", b"shop"),
        ("ce_subject", b"o-1"),
        ("ce_time", time),
        ("ce_correlationid", b"o-1"),
        ("schema-fingerprint", CODECS(Placed, Placed.TOPIC).fingerprint),
        ("traceparent", b"00-aa-bb-01"),
    ]


async def test_a_message_without_an_id_gets_id_and_correlation(world: World) -> None:
    async with world.transaction() as tx:
        ids = [tx.publish(Placed(order="o-1")) for _ in range(2)]
    headers = [dict(record.headers) for record in await world.records()]
    assert [each["ce_id"].decode() for each in headers] == ids
    assert [each["ce_correlationid"].decode() for each in headers] == ids
    assert len(set(ids)) == 2


async def test_a_block_that_raises_publishes_nothing(world: World) -> None:
    with suppress(KeyError):
        async with world.transaction() as tx:
            tx.publish(Placed(order="o-1"))
            raise KeyError("business")
    assert await world.records() == []


async def test_a_transaction_whose_id_is_taken_writes_nothing(world: World) -> None:
    async def publish(*ids: str) -> None:
        async with world.transaction() as tx:
            for each in ids:
                tx.publish(Placed(order=f"o-{each}"), each)

    await publish("1")
    with pytest.raises(MessageIdTaken):
        await publish("2", "1")
    assert [record.key for record in await world.records()] == [b"o-1"]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Placed(order="o-1", note="n" * 11_000), TooLarge),
        (lambda: Placed(order="o-1", pieces=1 << 70), Unencodable),
    ],
)
async def test_what_no_broker_would_take_is_refused_at_once(
    world: World, make: Callable[[], Placed], error: type[Exception]
) -> None:
    async with world.transaction() as tx:
        with pytest.raises(error):
            tx.publish(make())
        tx.publish(Placed(order="o-2"))
    assert [record.key for record in await world.records()] == [b"o-2"]


async def test_nothing_is_published_when_the_transaction_is_over(world: World) -> None:
    async with world.transaction() as tx:
        pass
    with pytest.raises(RuntimeError, match="over"):
        tx.publish(Placed(order="o-1"))


@pytest.fixture
def blobs(world: World) -> MemoryBlobs:
    blobs = MemoryBlobs()
    world.outbox.claims = ClaimChecks(blobs, bucket=blobs.bucket, threshold=2_000)
    return blobs


@pytest.mark.promise("outbox-payloads")
@pytest.mark.parametrize(
    "message",
    [Placed(order="o-1", note="n" * 2_000), Placed(order="o-1", note="n" * 50_000), Scanned(order="o-1")],
    ids=["over the threshold", "over the limit", "of a binary kind"],
)
async def test_a_payload_is_stored_before_its_row(world: World, blobs: MemoryBlobs, message: Placed) -> None:
    async with world.transaction() as tx:
        tx.publish(Placed(order="o-1"), "small")
        tx.publish(message, "m/1", traceparent="00-aa-bb-01")
    small, large = await world.records()
    assert (dict(small.headers).get("ce_dataref"), large.value) == (None, VALUE)
    headers = dict(large.headers)
    claims, codec = world.outbox.claims, CODECS(type(message), Placed.TOPIC)
    assert claims is not None
    assert codec.decode(await claims.check_out(headers), None) == message
    claim = claims.claim(Placed.TOPIC, "m/1", codec.encode(message), codec.content_type)
    assert blobs.names == [claim.name]
    plain = [pair for pair in large.headers if pair[0] not in dict(with_claim((), claim))]
    assert sorted(large.headers) == sorted(with_claim(plain, claim))


@pytest.mark.promise("outbox-payloads")
async def test_nothing_is_published_while_the_object_store_is_down(world: World, blobs: MemoryBlobs) -> None:
    blobs.down = True

    async def publish(*notes: str) -> None:
        async with world.transaction() as tx:
            for note in notes:
                tx.publish(Placed(order="o-1", note=note))

    with pytest.raises(BlobsUnavailable):
        await publish("", "n" * 50_000)
    assert await world.records() == []
    await publish("")  # a small one needs no store
    assert len(await world.records()) == 1


async def test_a_key_that_leaves_no_room_is_always_refused(world: World, blobs: MemoryBlobs) -> None:
    async with world.transaction() as tx:
        with pytest.raises(TooLarge):
            tx.publish(Placed(order="o" * 11_000))
    assert blobs.names == []
