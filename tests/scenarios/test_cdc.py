"""The relay by change data capture, on a real PostgreSQL, Kafka Connect with Debezium, and Kafka.

What holds of both kinds of relay is in `test_relays.py`.
"""

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from chaos.faults.failover import a_standby, replace_former
from chaos.rig.postgres_server import until_in_step
from streams.local import Stack
from streams.postgres import Database
from streams.postgres.cdc import RelayKind, slot_lag
from streams.postgres.relay import After
from tests.postgres import of_database
from tests.relays import Step, first_time, new_outbox, publish, until
from tests.scenarios.relay_ground import Ground, new_orders
from tests.waiting import BOUND

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.verify("it starts Connect: polling relays cover it, in test_relays.py and integration"),
]

#: Seconds: longer than a task is given to end.
AWAY = 30.0


@pytest.fixture
async def ground(captured: Stack, tmp_path: Path) -> AsyncIterator[Ground]:
    async with Database(of_database(captured.url("postgres"), "captured")) as database:
        yield Ground(RelayKind.CDC, captured.bootstrap, database, tmp_path, new_orders(), captured)


async def connect(ground: Ground, *, runs: bool) -> None:
    """Kill Kafka Connect, or start it again."""
    assert ground.stack is not None
    change = ground.stack.start_process if runs else ground.stack.stop_process
    await asyncio.to_thread(change, "connect")


@pytest.mark.promise("outbox-record")
@pytest.mark.promise("cdc-once")
async def test_connect_that_is_killed_twice_loses_and_doubles_nothing(ground: Ground) -> None:
    async def come(numbers: int) -> bool:
        found = await ground.came()
        return all(len(found[order]) >= numbers for order in ground.orders)

    with ground.relay():
        await ground.publish(0)  # a connector that is killed while it begins reads the table once more
        await ground.drained()
        publishing = asyncio.create_task(ground.publish(*range(1, 60)))
        for numbers in (2, 20):
            await until(lambda numbers=numbers: come(numbers))
            await connect(ground, runs=False)
            await connect(ground, runs=True)
        await publishing
        await ground.drained()
    assert await ground.must_be_whole(60) == 0


def keep_away(stack: Stack, seconds: float) -> None:
    """Kill the broker as often as it comes back."""
    killed, end = set(), time.monotonic() + seconds
    while time.monotonic() < end:
        broker = stack.state.brokers[0]
        if broker.pid not in killed:
            stack.signal_broker(broker.id, signal.SIGKILL)
            killed.add(broker.pid)
        time.sleep(0.1)


@pytest.mark.promise("cdc-once")
async def test_a_broker_that_is_away_for_long_is_waited_out(ground: Ground) -> None:
    """The former task's reader holds the slot then, until the relay ends it."""
    assert ground.stack is not None
    with ground.relay():
        await ground.publish(0)
        await ground.drained()
        await asyncio.to_thread(keep_away, ground.stack, AWAY)
        await ground.publish(1)
        await ground.drained()
    assert await ground.must_be_whole(2) == 0
    assert "cdc_predecessor_ended" in (ground.directory / "relay.log").read_text()


@pytest.mark.promise("cdc-slot")
async def test_rows_behind_a_dropped_slot_are_read_from_the_table(ground: Ground) -> None:
    pool = ground.database.pool
    with ground.relay():
        await ground.publish(0)
        await ground.drained()
    await connect(ground, runs=False)
    await pool.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    await pool.execute("SELECT pg_reload_conf()")
    await ground.publish(1, 2)
    unread = "nothing reads the replication slot"
    await must_be_told(ground, unread)
    with ground.relay():

        async def is_degraded() -> bool:
            try:
                health, _ = await ground.pages()
            except aiohttp.ClientConnectorError:  # the pages are still those of the relay before
                return False
            return any(each.startswith("slot: ") and unread in each for each in health["reasons"])

        await until(is_degraded)
        _, metrics = await ground.pages()
    figures: dict[str, float] = {
        name: float(value) for name, value in re.findall(r"^outbox_slot_(\w+) (\S+)$", metrics, re.M)
    }
    assert figures["active"] == 0
    assert min(figures["retained_bytes"], figures["beginnings"]) > 0
    await pool.execute("CREATE TABLE filler AS SELECT repeat('x', 100) FROM generate_series(1, 400000)")

    async def dropped() -> bool:
        async with ground.database.acquire() as connection:
            await connection.execute("SELECT pg_switch_wal()")
            await connection.execute("CHECKPOINT")
            lag = await slot_lag(connection)
        assert lag is not None
        return lag.is_lost

    await until(dropped)
    await must_be_told(ground, "the replication slot is lost", "`steadfaust outbox relay`")
    await pool.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
    await pool.execute("SELECT pg_reload_conf()")
    await connect(ground, runs=True)
    with ground.relay():
        await ground.publish(3)
        await ground.drained()
    await ground.must_be_whole(4)


@pytest.mark.promise("cdc-slot")
@pytest.mark.parametrize("first", ["the relay", "either"])
async def test_a_promoted_server_without_the_slot_loses_nothing(ground: Ground, first: str) -> None:
    """Replication slots are not copied: the relay finds that, or the connector before it."""
    assert ground.stack is not None
    log = ground.directory / "relay.log"
    with ground.relay():
        await ground.publish(0)
        await ground.drained()
        if first == "the relay":
            await connect(ground, runs=False)
        async with a_standby(ground.stack) as standby:
            await until_in_step(ground.database.url, standby)
            await standby.promote()
            promoted = f"{standby.url.rpartition('/')[0]}/captured"
            async with Database(promoted) as database:  # before there is a slot
                await ground._replace(database=database).publish(1)
            await replace_former(ground.stack, standby)
        await until(ground.answers)
        if first == "the relay":
            await until(lambda: '"slot": "there is none"' in log.read_text())
            await connect(ground, runs=True)
        await ground.publish(2)
        await ground.drained()
    await ground.must_be_whole(3)


async def must_be_told(ground: Ground, *words: str) -> None:
    status, told = await ground.command("outbox", "status")
    assert status == 4
    assert all(each in told for each in words)


@pytest.mark.promise("outbox-published")
@pytest.mark.parametrize(("after", "archived"), [(After.DELETE, 0), (After.ARCHIVE, 60)])
async def test_a_relayed_row_is_deleted_or_archived_as_by_polling(
    ground: Ground, after: After, archived: int
) -> None:
    async def count(table: str) -> int:
        asked = f"SELECT count(*) FROM {table} WHERE aggregate_id = ANY($1)"
        return int(await ground.database.pool.fetchval(asked, ground.orders))

    async def gone() -> bool:
        return await count("outbox") == 0

    with ground.relay(STEADFAUST_OUTBOX_AFTER=after):
        await ground.publish(0, 1, 2)
        await ground.drained()
        await until(gone)
    assert await ground.must_be_whole(3) == 0
    assert await count("outbox_archive") == archived


@pytest.mark.promise("outbox-republished")
async def test_a_republished_row_comes_again_under_its_id(ground: Ground) -> None:
    order = ground.orders[0]
    with ground.relay():
        await ground.publish(0, 1)
        await ground.drained()
        status, told = await ground.command("outbox", "republish", f"{order}:0")
        assert status == 0, told
        await ground.drained()
    assert (await ground.came())[order] == [0, 1, 0]


@pytest.mark.promise("outbox-owner")
async def test_commands_hand_the_outbox_over_and_lose_nothing(ground: Ground) -> None:
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


@pytest.mark.promise("cdc-unwritable")
async def test_a_row_that_the_connector_cannot_write_is_seen(ground: Ground) -> None:
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

        await until(seen, bound=3 * BOUND)  # Connect is slow to give the row up

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
