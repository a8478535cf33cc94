"""Migrations on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from streams.cli.main import app
from streams.errors import SettingsError
from streams.postgres import Connection, Database, MigrationSet, migrate
from streams.postgres.database import connect, without_password
from streams.postgres.errors import DatabaseUnavailable, MigrationError
from streams.postgres.migrations import standings
from tests.postgres import in_a_loop


@pytest.fixture
def shop(tmp_path: Path) -> MigrationSet:
    (tmp_path / "0001_parcels.sql").write_text("CREATE TABLE parcels (id text PRIMARY KEY);")
    (tmp_path / "0002_status.sql").write_text("ALTER TABLE parcels ADD status text;")
    return MigrationSet("shop", tmp_path)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    connection = await connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def test_a_second_run_has_nothing_to_do(postgres_url: str, shop: MigrationSet) -> None:
    async with connected(postgres_url) as connection:
        first = await migrate(connection, [shop])
        assert [(each.number, each.name) for each in first] == [(1, "parcels"), (2, "status")]
        assert await migrate(connection, [shop]) == []
        await connection.execute("INSERT INTO parcels VALUES ('1', 'open')")


async def test_programs_at_once_apply_each_migration_once(postgres_url: str, shop: MigrationSet) -> None:
    async def one() -> int:
        async with connected(postgres_url) as connection:
            return len(await migrate(connection, [shop]))

    assert sorted(await asyncio.gather(*(one() for _ in range(5)))) == [0, 0, 0, 0, 2]


async def test_a_migration_that_fails_leaves_nothing_of_itself(postgres_url: str, shop: MigrationSet) -> None:
    (shop.folder / "0003_wrong.sql").write_text("CREATE TABLE half (id int); SELECT nowhere;")
    async with connected(postgres_url) as connection:
        with pytest.raises(Exception, match="nowhere"):
            await migrate(connection, [shop])
        applied = [each.applied_at is not None for each in await standings(connection, [shop])]
        assert applied == [True, True, False]
        assert await connection.fetchval("SELECT to_regclass('half')") is None
        (shop.folder / "0003_wrong.sql").write_text("CREATE TABLE half (id int);")
        assert [each.number for each in await migrate(connection, [shop])] == [3]


async def test_a_migration_changed_once_applied_is_refused(postgres_url: str, shop: MigrationSet) -> None:
    async with connected(postgres_url) as connection:
        await migrate(connection, [shop])
        (shop.folder / "0001_parcels.sql").write_text("CREATE TABLE parcels (id bigint PRIMARY KEY);")
        with pytest.raises(MigrationError, match="0001_parcels of 'shop' was changed"):
            await migrate(connection, [shop])


async def test_a_database_ahead_of_the_program_is_refused(postgres_url: str, shop: MigrationSet) -> None:
    async with connected(postgres_url) as connection:
        await migrate(connection, [shop])
        (shop.folder / "0002_status.sql").unlink()
        with pytest.raises(MigrationError, match="has migration 2 of 'shop', this program knows 1"):
            await migrate(connection, [shop])


@pytest.mark.parametrize(
    ("names", "says"), [(["0001_a.sql", "0003_b.sql"], "without a gap"), (["first.sql"], "NNNN_")]
)
def test_files_that_make_no_sequence_are_refused(tmp_path: Path, names: list[str], says: str) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(MigrationError, match=says):
        MigrationSet("shop", tmp_path).read()


def test_the_command_says_what_is_outstanding_then_applies_it(postgres_url: str, shop: MigrationSet) -> None:
    options = ["--url", postgres_url, "--set", f"shop={shop.folder}"]
    run = CliRunner()
    assert run.invoke(app, ["db", "status", *options]).exit_code == 4
    assert "0002 status" in run.invoke(app, ["db", "migrate", "--dry-run", *options]).output
    assert run.invoke(app, ["db", "status", *options]).exit_code == 4, "a dry run applies nothing"
    applied = run.invoke(app, ["db", "migrate", *options])
    assert (applied.exit_code, "0001 parcels" in applied.output) == (0, True)
    assert "nothing to do" in run.invoke(app, ["db", "migrate", *options]).output
    assert run.invoke(app, ["db", "status", *options]).exit_code == 0
    with pytest.raises(SettingsError, match="give NAME=FOLDER"):
        run.invoke(app, ["db", "status", "--set", "shop"], catch_exceptions=False)


async def test_a_caller_whose_patience_is_over_gets_no_connection(postgres_url: str) -> None:
    async with Database(postgres_url, most=1, patience=1.5) as database, database.acquire():
        with pytest.raises(DatabaseUnavailable, match="cannot be used now"):
            async with database.acquire():
                pass


async def test_a_connection_lost_after_its_work_spoils_nothing(postgres_url: str) -> None:
    async def end(pid: int) -> None:
        async with connected(postgres_url) as other:
            assert await other.fetchval("SELECT pg_terminate_backend($1, 10000)", pid)

    with capture_logs() as logs:
        async with Database(postgres_url, most=1) as database:
            async with database.acquire() as connection:
                pid = await connection.fetchval("SELECT pg_backend_pid()")
                # Our loop stands meanwhile: it hears of it when the connection goes back.
                killer = threading.Thread(target=lambda: in_a_loop(end(pid)))
                killer.start()
                killer.join()
            async with database.acquire() as connection:
                assert await connection.fetchval("SELECT pg_backend_pid()") != pid
    assert [entry["event"] for entry in logs] == ["connection_lost"]


def farewell(connection: Connection) -> None:
    """The server's last words arrive, and the end of the connection has not arrived yet."""
    words = b"SFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
    connection._con._protocol.data_received(b"E" + (len(words) + 4).to_bytes(4, "big") + words)  # type: ignore[union-attr]


async def test_a_call_behind_a_servers_last_words_finds_it_away(postgres_url: str) -> None:
    async with Database(postgres_url, most=1) as database:
        with pytest.raises(DatabaseUnavailable):  # noqa: PT012 - the context manager is what raises
            async with database.acquire() as connection:
                farewell(connection)
                await connection.execute("SELECT 1")
        assert await database.pool.fetchval("SELECT 1") == 1


async def test_last_words_after_the_work_spoil_nothing(postgres_url: str) -> None:
    with capture_logs() as logs:
        async with Database(postgres_url, most=1) as database:
            async with database.acquire() as connection:
                await connection.execute("SELECT 1")
                farewell(connection)
            assert await database.pool.fetchval("SELECT 1") == 1
    assert [entry["event"] for entry in logs] == ["connection_lost"]


async def test_a_server_that_is_away_is_named_without_password() -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        await Database("postgresql://shop:secret@127.0.0.1:1/orders", patience=1).open()
    assert "shop:***@127.0.0.1:1/orders" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    assert without_password("postgresql://shop@db/orders") == "postgresql://shop@db/orders"


async def test_a_closing_database_waits_for_lent_connections(postgres_url: str) -> None:
    database = await Database(postgres_url).open()
    async with database.acquire() as connection:
        closing = asyncio.create_task(database.close())
        await asyncio.sleep(0)
        assert await connection.fetchval("SELECT 1") == 1
        assert not closing.done()
    await closing
