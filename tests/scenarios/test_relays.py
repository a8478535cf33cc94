"""What holds of both relays, polling and change data capture, on a real PostgreSQL and a real Kafka."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest

from streams.local import Stack, local_stack
from streams.model.codecs import Schemas, avro
from streams.model.layout import Layout
from streams.model.schema_versions import nothing_frozen
from streams.ports import Record
from streams.postgres import Connection, Database
from streams.postgres.cdc import RelayKind
from streams.postgres.database import connect
from streams.postgres.replication_slot import drop_slot
from streams.runtime.client import Producer, TopicReader
from tests.postgres import in_a_loop, migrated, of_database
from tests.relays import Step, first_time, new_outbox, publish, unpublished, until
from tests.scenarios.relay_ground import APP, Ground, crash, new_orders, prepared

pytestmark = pytest.mark.timeout(900)
POLL, CDC = RelayKind.POLL, RelayKind.CDC
BY_CDC = pytest.param(CDC, id="cdc", marks=pytest.mark.verify("it starts Connect: poll stands for it"))
BOTH = [pytest.param(POLL, id="poll"), BY_CDC]
BOTH_KILLED = [
    pytest.param(POLL, id="poll", marks=pytest.mark.verify("a server of its own, which is killed")),
    BY_CDC,
]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Kafka, PostgreSQL and Connect of this module, which tests may kill."""
    var = tmp_path_factory.mktemp("relays")
    with local_stack(var, databases=["captured", "polled"], cdc=True, revive_after=3.0) as stack:
        in_a_loop(prepared(stack.bootstrap))
        for database in ("captured", "polled"):
            in_a_loop(migrated(of_database(stack.url("postgres"), database)))
        yield stack


class Place(NamedTuple):
    """Where a ground is."""

    postgres: str
    bootstrap: str
    stack: Stack | None


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
        return Place(request.getfixturevalue("postgres_url"), bootstrap, None)
    stack: Stack = request.getfixturevalue("ours")
    url = of_database(stack.url("postgres"), "captured" if kind is CDC else "polled")
    return Place(url, stack.bootstrap, stack)


@pytest.fixture
async def ground(kind: RelayKind, place: Place, tmp_path: Path) -> AsyncIterator[Ground]:
    """What a test has."""
    async with Database(place.postgres) as database:
        yield Ground(kind, place.bootstrap, database, tmp_path, new_orders(), place.stack)


def stack_of(ground: Ground) -> Stack:
    """One whose servers may be killed."""
    assert ground.stack is not None
    return ground.stack


def said(record: Record) -> list[tuple[str, bytes]]:
    """Its headers but for the time; change data capture has one without a value for each empty column."""
    return [(name, value) for name, value in record.headers if name != "ce_time" and value is not None]


@pytest.mark.parametrize("kind", BOTH)
async def test_a_record_is_the_one_that_a_producer_writes(ground: Ground) -> None:
    order, other = ground.orders[:2]
    async with ground.database.acquire() as connection:
        await publish(outbox := new_outbox(), connection, (order, 1))
    with ground.relay():
        await ground.drained()
    async with Producer(ground.bootstrap, avro(nothing_frozen, Schemas()), source="shop") as producer:
        await producer.send(Step(order=order, number=1), message_id=f"{order}:1")
        await producer.send(Step(order=other, number=1), message_id=f"{other}:1")
    relayed, sent = [record for record in await ground.records() if record.key == order.encode()]
    assert (relayed.partition, relayed.value, said(relayed)) == (sent.partition, sent.value, said(sent))
    async with TopicReader(ground.bootstrap, [Layout(APP, 1, 1).announcements]) as reader:
        announced = {record.key: record.value async for record in reader.to_end()}
    codec = outbox.codec(Step)
    assert announced[b"schema:" + codec.fingerprint] == codec.schema.encode()


@pytest.mark.parametrize("kind", BOTH)
async def test_each_aggregate_keeps_its_order_with_two_relays(
    ground: Ground,
) -> None:
    outbox, half = new_outbox(), len(ground.orders) // 2
    with ground.relay(), ground.relay():
        if ground.kind is POLL:
            await until(lambda: _is(ground, 2))
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


@pytest.mark.parametrize("kind", [BY_CDC])
async def test_commands_hand_the_outbox_over_and_lose_nothing(
    ground: Ground,
) -> None:
    await ground.command("cdc", "stop")  # whatever there was before
    status, said = await ground.command("cdc", "status")
    assert status == 4
    assert "poll" in said
    assert "there is no connector" in said
    status, said = await ground.command("cdc", "start")
    assert status == 1
    assert "`steadfaust cdc start --take-over`" in said

    await ground.publish(0)
    status, said = await ground.command("cdc", "start", "--take-over")
    assert (status, "task 0 RUNNING" in said) == (0, True), said
    with ground.relay() as relay:
        await ground.publish(1)
        await ground.drained()
        status, said = await ground.command("cdc", "status", "--json")
        found = json.loads(said)
        assert (status, found["owner"], found["problem"]) == (0, "cdc", "")
        assert found["connector"]["tasks"][0]["state"] == "RUNNING"
        assert (found["slot"]["active"], found["slot"]["warning"]) == (True, "")
        assert (await ground.command("cdc", "stop", "--dry-run"))[0] == 0
        assert (await ground.command("cdc", "status"))[0] == 0

        status, said = await ground.command("cdc", "stop")
        assert status == 0, said
        await until(lambda: relay.poll() is not None)
        assert relay.returncode == 1
    assert "belongs to polling relays" in (ground.directory / "relay.log").read_text()
    status, said = await ground.command("cdc", "status", "--json")
    found = json.loads(said)
    assert (status, found["owner"], found["connector"], found["slot"]) == (4, "poll", None, None)

    await ground.publish(2)
    with ground.relay(STEADFAUST_OUTBOX="poll"):
        await ground.drained()
    status, said = await ground.command("cdc", "start", "--take-over")
    assert status == 0, said
    with ground.relay():
        await ground.publish(3)
        await ground.drained()
    await ground.must_be_whole(4)


@pytest.mark.parametrize("kind", [BY_CDC])
async def test_a_row_that_the_connector_cannot_write_is_seen(
    ground: Ground,
) -> None:
    with ground.relay():
        await ground.publish(0)
        await ground.drained()
        async with ground.database.acquire() as connection:
            poison = ground.orders[0], 1
            await publish(new_outbox(limit=10_000_000), connection, poison, note="n" * 2_000_000)
        await ground.publish(2)

        async def seen() -> bool:
            health, _ = await ground.pages()
            return health["status"] == "DOWN" and "RecordTooLarge" in str(health["reasons"])

        await until(seen)

    async def told() -> bool:  # the relay may have started the task again just before it ended
        status, said = await ground.command("cdc", "status")
        named = f"The largest row that waits is {poison[0]}:1 (topic {Step.TOPIC}, 2000" in said
        return status == 4 and named and "task 0 of the connector has failed" in said

    await until(told)
    assert not any(2 in numbers for numbers in (await ground.came()).values()), "it stops all rows"
    async with ground.database.acquire() as connection:
        await connection.execute("DELETE FROM outbox WHERE id = $1", f"{poison[0]}:1")
    for command in (["stop"], ["start", "--take-over"]):
        status, said = await ground.command("cdc", *command)
        assert status == 0, said
    assert "problem    none" in said, "what is over is not reported"
    with ground.relay():
        await ground.drained()
    assert {order: first_time(found) for order, found in (await ground.came()).items()} == {
        order: [0, 2] for order in ground.orders
    }


async def _is(ground: Ground, owners: int) -> bool:
    return await ground.owners() == owners


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
