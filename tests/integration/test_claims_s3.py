"""Claim checks on real S3: of lanes, and of the outbox."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from uuid import uuid4

import pytest

from streams.cli import erase
from streams.cli.claims import referenced
from streams.errors import BlobAltered, BlobMissing, BlobsUnavailable, SettingsError
from streams.host.client import Producer
from streams.kafka.topics import KafkaTopics
from streams.local import Stack
from streams.model.claim import PREFIX, with_claim
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import Schemas, avro
from streams.model.layout import CLAIMS
from streams.model.operations import KeyCommand
from streams.model.schema_versions import nothing_frozen
from streams.ports import TopicSpec
from streams.postgres import Connection, Database, Outbox
from streams.postgres.relay.outbox_publisher import KafkaPublisher
from streams.s3 import S3Blobs
from streams.s3.sweep import Sweepable, sweep
from streams.settings import LOCAL_BUCKET, LOCAL_KEYS, Settings
from streams.units import DAY, MIB
from tests.relays import ANNOUNCEMENTS, Step, drained, relayed, relaying, with_topics

PICTURE = bytes(range(256)) * 20_000


@pytest.fixture
def checks(blobs: S3Blobs) -> ClaimChecks:
    return ClaimChecks(blobs, bucket=LOCAL_BUCKET, max_in_flight_bytes=8 << 20, cache_bytes=0)


async def stored(checks: ClaimChecks, message_id: str, data: bytes) -> tuple[str, Mapping[str, bytes]]:
    """The object's name, and the headers of a message whose payload it is."""
    claim = checks.claim("orders.order.placed.v1", message_id, data, "image/png")
    await checks.check_in(claim, data)
    return claim.name, dict(with_claim([], claim))


async def test_payloads_of_all_sizes_go_in_and_out_at_once(checks: ClaimChecks) -> None:
    payloads = {f"order {n}/ü": PICTURE[: 10 ** (n % 7)] for n in range(14)}
    messages = await asyncio.gather(*(stored(checks, each, data) for each, data in payloads.items()))
    out = await asyncio.gather(*(checks.check_out(headers) for _, headers in messages))
    assert out == list(payloads.values())


async def test_an_outage_passes_but_no_lost_object(s3: Stack, blobs: S3Blobs, checks: ClaimChecks) -> None:
    name, message = await stored(checks, "o-1", PICTURE)
    await asyncio.to_thread(s3.stop_process, "s3")
    try:
        with pytest.raises(BlobsUnavailable):
            await checks.check_out(message)
        with pytest.raises(BlobsUnavailable):
            await stored(checks, "o-2", PICTURE)
    finally:
        await asyncio.to_thread(s3.start_process, "s3")
    assert await checks.check_out(message) == PICTURE

    await blobs.put(name, PICTURE[:-1] + b"?", "image/png")
    with pytest.raises(BlobAltered, match=name):
        await checks.check_out(message)
    await blobs.delete([name])
    with pytest.raises(BlobMissing, match=name):
        await checks.check_out(message)


async def test_a_sweep_leaves_what_a_row_names(blobs: S3Blobs, checks: ClaimChecks) -> None:
    kept, message = await stored(checks, "o 1", b"a gift")
    orphan, _ = await stored(checks, "o%2", b"never committed")

    async def rows() -> AsyncIterator[str]:
        yield kept

    young = await sweep(blobs, rows(), now=time.time, grace=3600.0, delete=True)
    assert (young.found[Sweepable.YOUNG].objects, young.deleted.objects) == (2, 0)
    dry = await sweep(blobs, rows(), now=time.time, grace=-10.0)
    assert (dry.found[Sweepable.ORPHAN].objects, dry.deleted.objects) == (1, 0)
    real = await sweep(blobs, rows(), now=time.time, grace=-10.0, delete=True)
    assert (real.deleted.objects, real.deleted.bytes) == (1, len(b"never committed"))
    assert [blob.name async for blob in blobs.scan(PREFIX)] == [kept]
    assert await checks.check_out(message) == b"a gift"
    assert await blobs.head(orphan) is None


CODECS = avro(nothing_frozen, Schemas())
LARGE = "n" * (3 * MIB)


class Scan(Step, frozen=True, kw_only=True):
    TOPIC = "shop.order.scan.v1"


@pytest.fixture
def claims(blobs: S3Blobs) -> ClaimChecks:
    return ClaimChecks(blobs, bucket=LOCAL_BUCKET)


@pytest.fixture
async def bootstrap(kafka: Stack) -> str:
    return await with_topics(kafka.bootstrap, Scan.TOPIC)


@pytest.mark.promise("outbox-payloads", "real S3")
async def test_a_large_message_is_relayed_as_producers_send_it(
    database: Database, connection: Connection, bootstrap: str, claims: ClaimChecks
) -> None:
    order = f"o-{uuid4()}"
    message = Scan(order=order, number=1, note=LARGE)
    outbox = Outbox(CODECS, source="shop", claims=claims)
    async with outbox.transaction(connection) as tx:
        tx.publish(message, f"{order}:1")
    assert await connection.fetchval("SELECT pg_column_size(outbox.*) FROM outbox") < 2000
    async with relaying(database.url, KafkaPublisher(bootstrap, ANNOUNCEMENTS)):
        await drained(database)
    async with Producer(bootstrap, CODECS, source="shop", claims=claims) as producer:
        await producer.send(message, message_id=f"{order}:1")
    came, sent = [each for each in await relayed(bootstrap, Scan.TOPIC) if each.key == order.encode()]
    assert (came.partition, came.value) == (sent.partition, sent.value) == (0, b"")
    untimed = [[pair for pair in each.headers if pair[0] != "ce_time"] for each in (came, sent)]
    assert untimed[0] == untimed[1]
    payload = await claims.check_out(dict(came.headers))
    assert CODECS(Scan, Scan.TOPIC).decode(payload, None) == message


@pytest.mark.promise("outbox-payloads", "real S3")
async def test_the_sweeper_keeps_what_the_outbox_refers_to(
    database: Database, connection: Connection, bootstrap: str, blobs: S3Blobs, claims: ClaimChecks
) -> None:
    outbox = Outbox(CODECS, source="shop", claims=claims)
    settings = Settings(postgres_url=database.url, bootstrap=bootstrap, app_id=f"shop-{uuid4().hex[:8]}")
    with pytest.raises(SettingsError, match=f"no worker of {settings.app_id} has run with an object store"):
        [name async for name in referenced(settings)]
    async with KafkaTopics(bootstrap) as topics:
        await topics.create([TopicSpec(settings.layout().changelog(CLAIMS), 1, 1)])
    async with outbox.transaction(connection) as tx:
        tx.publish(Scan(order="kept", number=1, note=LARGE), "kept")
    with suppress(KeyError):
        async with connection.transaction():
            async with outbox.transaction(connection) as tx:
                tx.publish(Scan(order="gone", number=1, note=LARGE), "gone")
            raise KeyError("rolled back")
    there = [blob.name async for blob in blobs.scan("")]
    assert len(there) == 2
    later = max([blob.modified async for blob in blobs.scan("")]) + 8 * DAY
    report = await sweep(
        blobs, referenced(settings), now=lambda: later, grace=7 * DAY, delete=True, progress=lambda _: None
    )
    assert report.found[Sweepable.REFERENCED].objects == 1
    assert [blob.name async for blob in blobs.scan("")] == [name for name in there if "kept" in name]
    short = settings.model_copy(update={"outbox_retention_days": 1.0})
    with pytest.raises(SettingsError, match="STEADFAUST_OUTBOX_RETENTION_DAYS"):
        [name async for name in referenced(short)]


async def test_objects_of_an_erased_key_are_deleted(
    database: Database,
    connection: Connection,
    bootstrap: str,
    s3: Stack,
    blobs: S3Blobs,
    claims: ClaimChecks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the outbox and in a topic; lanes, of which none runs here, name theirs in the log."""
    for name, value in {
        "BOOTSTRAP": bootstrap, "APP_ID": f"shop-{uuid4().hex[:8]}", "POSTGRES_URL": database.url,
        "S3_BUCKET": LOCAL_BUCKET, "S3_ENDPOINT": s3.url("s3"), "S3_ACCESS_KEY": LOCAL_KEYS[0],
        "S3_SECRET_KEY": LOCAL_KEYS[1],
    }.items():  # fmt: skip
        monkeypatch.setenv(f"STEADFAUST_{name}", value)
    layout = Settings.read().layout()
    async with KafkaTopics(bootstrap) as topics:
        specs = [TopicSpec(name, layout.partitions, 1) for name in (layout.operations, layout.operations_log)]
        await topics.create(specs)
    async with Outbox(CODECS, source="shop", claims=claims).transaction(connection) as tx:
        tx.publish(Scan(order="erased", number=1, note=LARGE), "erased:1")
        tx.publish(Scan(order="kept", number=1, note=LARGE), "kept:1")
    async with Producer(bootstrap, CODECS, source="shop", claims=claims) as producer:
        await producer.send(Scan(order="erased", number=2, note=LARGE), message_id="erased:2")
    for kind, left in ((KeyCommand.FIND, 3), (KeyCommand.ERASE, 1)):
        report = await erase._erase([Scan.TOPIC], [], "erased", kind, who="ann", why="a request", timeout=0)
        assert report.erased == {"outbox": 1, "objects": 2}
        assert len([blob async for blob in blobs.scan("")]) == left
    (name,) = [blob.name async for blob in blobs.scan("")]
    assert "kept" in name
