"""What holds of both relays, polling and change data capture, on a real PostgreSQL and a real Kafka."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import asyncpg
import pytest

from streams.host.client import Producer, TopicReader
from streams.kafka.topics import KafkaTopics
from streams.local import Stack
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import Schemas, avro
from streams.model.layout import Layout
from streams.model.schema_versions import nothing_frozen
from streams.ports import Record, TopicSpec
from streams.postgres import Connection, Database
from streams.postgres.cdc import RelayKind
from streams.postgres.database import connect
from streams.postgres.replication_slot import drop_slot
from streams.testing.blobs import MemoryBlobs
from tests.postgres import in_a_loop, of_database
from tests.relays import Step, first_time, new_outbox, publish, unpublished, until
from tests.scenarios.relay_ground import APP, Ground, crash, new_orders, prepared

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.promise(
        "api-to-kafka", "relays, PostgreSQL and the broker are killed (polling and change data capture)"
    ),
]
POLL, CDC = RelayKind.POLL, RelayKind.CDC
BY_CDC = pytest.param(CDC, id="cdc", marks=pytest.mark.verify("it starts Connect: poll covers it"))
BOTH = [pytest.param(POLL, id="poll"), BY_CDC]
BOTH_KILLED = [
    pytest.param(POLL, id="poll", marks=pytest.mark.verify("a server of its own, which is killed")),
    BY_CDC,
]


#: Where a ground is: PostgreSQL, Kafka, and the stack that tests may kill.
Place = tuple[str, str, Stack | None]


@pytest.fixture
def kind() -> RelayKind:
    """Which relay; tests are for both."""
    raise NotImplementedError


@pytest.fixture
def place(request: pytest.FixtureRequest, kind: RelayKind) -> Place:
    """The servers that all tests share; those of this module for Connect, and where servers are killed."""
    if kind is POLL and request.node.get_closest_marker("verify") is None:
        bootstrap = request.getfixturevalue("kafka").bootstrap
        in_a_loop(prepared(bootstrap))
        return request.getfixturevalue("postgres_url"), bootstrap, None
    stack: Stack = request.getfixturevalue("captured")
    url = of_database(stack.url("postgres"), "captured" if kind is CDC else "polled")
    return url, stack.bootstrap, stack


@pytest.fixture
async def ground(kind: RelayKind, place: Place, tmp_path: Path) -> AsyncIterator[Ground]:
    url, bootstrap, stack = place
    async with Database(url) as database:
        yield Ground(kind, bootstrap, database, tmp_path, new_orders(), stack)


def stack_of(ground: Ground) -> Stack:
    assert ground.stack is not None
    return ground.stack


def said(record: Record) -> list[tuple[str, bytes]]:
    """Its headers but for the time; change data capture has one without a value for each empty column."""
    return [(name, value) for name, value in record.headers if name != "ce_time" and value is not None]


class Unheard(Step, frozen=True, kw_only=True):
    TOPIC = "shop.order.unheard.v1"


@pytest.mark.promise("outbox-record", "polling and change data capture")
@pytest.mark.promise("outbox-payloads")
@pytest.mark.parametrize("kind", BOTH)
async def test_a_record_is_the_one_that_a_producer_writes(ground: Ground) -> None:
    order, outbox, blobs = ground.orders[0], new_outbox(), MemoryBlobs()
    outbox.claims = ClaimChecks(blobs, bucket=blobs.bucket, threshold=500)
    steps = [Step(order=order, number=1), Step(order=order, number=2, note="n" * 1000)]
    async with ground.database.acquire() as connection:
        for step in steps:
            await publish(outbox, connection, (order, step.number), note=step.note)
    with ground.relay():
        await ground.drained()
    codecs = avro(nothing_frozen, Schemas())
    async with Producer(ground.bootstrap, codecs, source="shop", claims=outbox.claims) as producer:
        for step in steps:
            await producer.send(step, message_id=f"{order}:{step.number}")
    records = [record for record in await ground.records() if record.key == order.encode()]
    relayed, sent = [
        [(each.partition, each.value, said(each)) for each in records[n : n + 2]] for n in (0, 2)
    ]
    assert relayed == sent
    assert "ce_dataref" in dict(records[1].headers), "the large one is by reference"
    async with TopicReader(ground.bootstrap, [Layout(APP, 1, 1).announcements]) as reader:
        announced = {record.key: record.value async for record in reader.to_end()}
    codec = outbox.codec(Step)
    assert announced[b"schema:" + codec.fingerprint] == codec.schema.encode()


@pytest.mark.promise("outbox-order", "polling and change data capture")
@pytest.mark.promise("cdc-once")
@pytest.mark.parametrize("kind", BOTH)
async def test_each_aggregate_keeps_its_order_with_two_relays(ground: Ground) -> None:
    outbox, half = new_outbox(), len(ground.orders) // 2
    with ground.relay(), ground.relay():
        if ground.kind is POLL:
            await until(lambda: _are(ground.owners(), 2))
        async with ground.database.acquire() as late, ground.database.acquire() as connection:
            for number in range(10):
                async with late.transaction():  # its rows have the lower positions and are there later
                    await publish(outbox, late, *((order, number) for order in ground.orders[:half]))
                    await publish(outbox, connection, *((order, number) for order in ground.orders[half:]))
            transaction = late.transaction()
            await transaction.start()
            await publish(outbox, late, *((order, 10) for order in ground.orders[:half]))
            await publish(outbox, connection, *((order, 10) for order in ground.orders[half:]))
            gone = connection.transaction()
            await gone.start()
            await publish(outbox, connection, *((order, 11) for order in ground.orders))
            await gone.rollback()
            await ground.drained()  # by now all that lies behind the late ones is published
            await transaction.commit()
            await ground.drained()
    assert await ground.must_be_whole(11) == 0


@pytest.mark.promise("outbox-crashes", "polling and change data capture")
@pytest.mark.parametrize("kind", BOTH)
async def test_a_killed_relay_loses_nothing_and_the_next_continues(ground: Ground) -> None:
    with ground.relay() as killed:
        await ground.publish(*range(5))
        killed.kill()
        await ground.publish(5, 6)
    with ground.relay() as next_one:
        await ground.publish(7)
        await ground.drained()
        next_one.send_signal(signal.SIGINT)
        await until(lambda: next_one.poll() is not None)
        assert next_one.returncode == 0
    await ground.must_be_whole(8)


@pytest.mark.promise("outbox-crashes", "polling and change data capture")
@pytest.mark.parametrize("kind", BOTH)
async def test_a_crash_of_postgresql_is_waited_out(ground: Ground) -> None:
    with ground.relay() as relay:
        await ground.publish(0, 1)
        await ground.drained()
        connection = await connect(ground.database.url)
        await crash(connection)
        await until(lambda: connection.is_closed())
        await until(ground.answers)
        await ground.publish(2, 3)
        await ground.drained()
        assert relay.poll() is None
    await ground.must_be_whole(4)


@pytest.mark.promise("outbox-crashes", "polling and change data capture")
@pytest.mark.promise("inbox-relayed")
@pytest.mark.parametrize("kind", BOTH)
async def test_repeated_records_have_one_id_and_keep_their_order(ground: Ground) -> None:
    """Polled: killed between publishing and marking. Captured: the slot was dropped before it marked."""
    await ground.publish(0, 1)
    if ground.kind is POLL:
        with ground.relay(faults="published:1:kill") as killed:
            await until(lambda: killed.poll() is not None)
    else:
        with ground.relay():
            await ground.drained()
        await ground.publish(2)  # the connector relays, and nobody marks
        await until(lambda: _has_come(ground, 3))
        await asyncio.to_thread(stack_of(ground).stop_process, "connect")
        async with ground.database.acquire() as connection:
            await until(lambda: _dropped(connection))
        await asyncio.to_thread(stack_of(ground).start_process, "connect")
    with ground.relay():
        await ground.publish(2 if ground.kind is POLL else 3)
        await ground.drained()
    assert await ground.must_be_whole(3 if ground.kind is POLL else 4) > 0


@pytest.mark.promise("outbox-crashes", "polling and change data capture")
@pytest.mark.parametrize("kind", BOTH_KILLED)
async def test_nothing_is_lost_when_the_broker_is_killed(ground: Ground) -> None:
    stack = stack_of(ground)
    with ground.relay() as relay:
        await ground.publish(0)
        await ground.drained()
        killed = stack.state.brokers[0]
        stack.signal_broker(killed.id, signal.SIGKILL)
        await ground.publish(*range(1, 6))
        assert await unpublished(ground.database) > 0
        await until(lambda: stack.state.brokers[0].pid != killed.pid)
        await ground.drained()
        assert relay.poll() is None
    await ground.must_be_whole(6)


@pytest.mark.promise("outbox-crashes", "PostgreSQL, and Kafka Connect")
@pytest.mark.promise("cdc-once")
@pytest.mark.parametrize("kind", BOTH_KILLED)
@pytest.mark.parametrize("server", ["postgres", "connect"])
async def test_nothing_is_lost_when_a_server_is_killed(ground: Ground, server: str) -> None:
    """A polling relay needs no Connect, and notices nothing of it."""
    stack = stack_of(ground)
    with ground.relay() as relay:
        await ground.publish(0)
        await ground.drained()
        await asyncio.to_thread(stack.stop_process, server)
        if server == "connect":
            await ground.publish(1)
        await asyncio.to_thread(stack.start_process, server)
        await until(ground.answers)
        await ground.publish(*range(2 if server == "connect" else 1, 5))
        await ground.drained()
        assert relay.poll() is None
    await ground.must_be_whole(5)


# Polling relays at each of their steps


@pytest.mark.promise("outbox-crashes")
@pytest.mark.parametrize(
    "point",
    [
        "published",
        pytest.param("fetched", marks=pytest.mark.verify("a process for each point")),
        pytest.param("marked", marks=pytest.mark.verify("a process for each point")),
    ],
)
@pytest.mark.parametrize("kind", [POLL])
async def test_a_relay_killed_at_a_step_loses_nothing(ground: Ground, point: str) -> None:
    await ground.publish(*range(5))
    with ground.relay(faults=f"{point}:1:kill") as killed:
        await until(lambda: killed.poll() is not None)
        assert killed.returncode == -signal.SIGKILL
    assert f"{point}:1:kill" in (ground.directory / "faults.log").read_text()
    with ground.relay() as next_one:
        await ground.publish(5)
        await ground.drained()
        next_one.send_signal(signal.SIGINT)
        await until(lambda: next_one.poll() is not None)
        assert next_one.returncode == 0
    repeated = await ground.must_be_whole(6)
    assert repeated > 0 if point == "published" else repeated == 0


@pytest.mark.promise("outbox-refused")
@pytest.mark.verify("a process for each point")
@pytest.mark.parametrize("kind", [POLL])
async def test_a_relay_killed_after_a_refusal_publishes_the_row_later(ground: Ground) -> None:
    await ground.publish(0)
    refused = ground.orders[0]
    async with ground.database.acquire() as connection:
        await publish(new_outbox(), connection, (refused, 1), kind=Unheard)
    await ground.publish(2)
    with ground.relay(faults="refused:1:kill") as killed:
        await until(lambda: killed.poll() is not None)
        assert killed.returncode == -signal.SIGKILL
    with ground.relay():
        await until(lambda: _are(unpublished(ground.database), 2))
        async with KafkaTopics(ground.bootstrap) as topics:
            await topics.create([TopicSpec(Unheard.TOPIC, 1, 1)])
        await ground.drained()
    found = await ground.came()
    assert {order: first_time(found[order]) for order in ground.orders} == {
        order: [0, 2] for order in ground.orders
    }
    async with TopicReader(ground.bootstrap, [Unheard.TOPIC]) as reader:
        ids = [dict(record.headers)["ce_id"] async for record in reader.to_end()]
    assert set(ids) == {f"{refused}:1".encode()}


@pytest.mark.promise("outbox-crashes")
@pytest.mark.verify("waits for a lease to end")
@pytest.mark.parametrize("kind", [POLL])
async def test_a_frozen_relay_loses_its_shards_and_repeats_little(ground: Ground) -> None:
    with ground.relay() as frozen:
        await until(lambda: _are(ground.owners(), 1))
        frozen.send_signal(signal.SIGSTOP)
        await ground.publish(*range(5))
        with ground.relay():
            await ground.drained()
            frozen.send_signal(signal.SIGCONT)
            await until(lambda: _are(ground.owners(), 2))  # it has joined again
            await ground.publish(5, 6)
            await ground.drained()
    await ground.must_be_whole(7)


async def _are(counted: Awaitable[int], wanted: int) -> bool:
    return await counted == wanted


async def _has_come(ground: Ground, numbers: int) -> bool:
    found = await ground.came()
    return all(len(found[order]) >= numbers for order in ground.orders)


async def _dropped(connection: Connection) -> bool:
    """The server may take a moment to see that its reader has gone."""
    try:
        await drop_slot(connection)
    except asyncpg.ObjectInUseError:
        return False
    return True
