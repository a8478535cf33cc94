"""Migrations on a real PostgreSQL."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from streams.cli.main import app
from streams.errors import SettingsError
from streams.postgres import LIBRARY, Connection, Database, MigrationSet, migrate
from streams.postgres.cdc.lifecycle import ensure_publication
from streams.postgres.database import without_password
from streams.postgres.errors import DatabaseUnavailable, MigrationError, StatementRefused
from streams.postgres.migrations import applying, standings
from streams.postgres.outbox_owner import RelayKind, claim_outbox
from tests.postgres import connected, in_a_loop
from tests.waiting import BOUND, eventually_async


@pytest.fixture
def shop(tmp_path: Path) -> MigrationSet:
    (tmp_path / "0001_parcels.sql").write_text("CREATE TABLE parcels (id text PRIMARY KEY);")
    (tmp_path / "0002_status.sql").write_text("ALTER TABLE parcels ADD status text;")
    return MigrationSet("shop", tmp_path)


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


@pytest.mark.promise("migrations")
async def test_a_migration_behind_a_long_reader_lets_writers_go_on(
    postgres_url: str, shop: MigrationSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "LOCK_WAIT", 0.3)
    async with connected(postgres_url) as connection, connected(postgres_url) as reader:
        await migrate(connection, [shop])
        (shop.folder / "0003_note.sql").write_text("ALTER TABLE parcels ADD note text;")
        await reader.execute("BEGIN; SELECT FROM parcels")
        pid = await reader.fetchval("SELECT pg_backend_pid()")
        with capture_logs() as logs:
            migrating = asyncio.create_task(migrate(connection, [shop], url=postgres_url))
            await eventually_async(lambda: len(logs) > 1, "it waits for a lock")
            async with connected(postgres_url) as writer:
                await writer.execute("INSERT INTO parcels (id) VALUES ('1')")
            assert not migrating.done()
            await reader.execute("COMMIT")
            assert [each.name for each in await migrating] == ["note"]
    assert {each["event"] for each in logs} == {"migration_waits"}
    assert f"a lock held by pid {pid}" in logs[0]["error"]


@pytest.mark.promise("migrations")
async def test_a_lock_that_stays_is_named_and_nothing_applied(
    postgres_url: str, shop: MigrationSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "LOCK_WAIT", 0.3)
    async with connected(postgres_url) as connection, connected(postgres_url) as reader:
        await migrate(connection, [shop])
        half = "CREATE TABLE half (id int); ALTER TABLE parcels ADD n text;"
        (shop.folder / "0003_note.sql").write_text(half)
        await reader.execute("BEGIN; SELECT FROM parcels")
        pid = await reader.fetchval("SELECT pg_backend_pid()")
        with capture_logs(), pytest.raises(MigrationError, match=f"not applied at all: .* held by pid {pid}"):
            await migrate(connection, [shop], patience=0.0, url=postgres_url)
        assert await connection.fetchval("SELECT to_regclass('half')") is None


@pytest.mark.parametrize(
    ("sql", "is_whole"),
    [
        ("CREATE TABLE a (id int); COMMIT; CREATE TABLE b (id int);", False),
        ("begin;\nCREATE TABLE a (id int);\nend;", False),
        ("CREATE TABLE a (id int); ROLLBACK WORK;", False),
        (r"INSERT INTO a VALUES ('\'); COMMIT; INSERT INTO a VALUES ('\');", False),
        (
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; END; COMMIT;",
            False,
        ),
        ("-- COMMIT;\nCREATE TABLE a (id text DEFAULT '; COMMIT;');", True),
        ("DO $$ BEGIN PERFORM 1; END $$; CREATE TABLE a (id int);", True),
        ("SAVEPOINT s; CREATE TABLE a (id int); ROLLBACK TO SAVEPOINT s; ROLLBACK WORK TO s;", True),
        (r"CREATE TABLE a (id text DEFAULT E'it\'s; COMMIT;');", True),
        ('CREATE TABLE a ("; COMMIT;" int);', True),
        (
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; END; SELECT 1;",
            True,
        ),
    ],
)
def test_sql_that_ends_its_transaction_is_refused(sql: str, is_whole: bool) -> None:
    with nullcontext() if is_whole else pytest.raises(MigrationError, match="a migration is one transaction"):
        applying.require_whole("0001_a.sql", sql)


async def test_a_file_that_ends_its_transaction_is_not_applied(postgres_url: str, shop: MigrationSet) -> None:
    """One that an earlier version has applied stays as it is."""
    ends = shop.folder / "0003_ends.sql"
    ends.write_text("CREATE TABLE early (id int); COMMIT;")
    async with connected(postgres_url) as connection:
        with pytest.raises(MigrationError, match=r"0003_ends\.sql says COMMIT"):
            await migrate(connection, [shop])
        assert await connection.fetchval("SELECT to_regclass('early')") is None
        digest = shop.read()[-1].digest
        await connection.execute(
            """INSERT INTO applied_migrations ("set", number, name, digest) VALUES ('shop', 3, 'ends', $1)""",
            digest,
        )
        assert await migrate(connection, [shop]) == []
        assert len(await standings(connection, [shop])) == 3


@pytest.fixture
async def role(database: Database) -> AsyncIterator[str]:
    name = "owner_" + await database.pool.fetchval("SELECT current_database()")
    await database.pool.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    await database.pool.execute(f"DROP OWNED BY {name} CASCADE")
    await database.pool.execute(f"DROP ROLE {name}")


async def test_who_owns_a_schema_alone_has_all_applied(database: Database, role: str) -> None:
    await database.pool.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
    async with connected(database.url.replace("//steadfaust@", f"//{role}@")) as connection:
        await connection.execute(f"SET search_path TO {role}")
        applied = await migrate(connection)
        assert len(applied) == len(LIBRARY.read())
        await claim_outbox(connection, RelayKind.CDC)
        with pytest.raises(StatementRefused, match=f"GRANT CREATE ON DATABASE .* TO {role}"):
            await ensure_publication(connection)


async def test_a_right_that_is_missing_is_named(database: Database, role: str) -> None:
    url = database.url.replace("//steadfaust@", f"//{role}@")
    async with connected(url) as connection:
        await connection.execute("SET search_path TO public, nowhere")
        with pytest.raises(MigrationError, match=f"GRANT SELECT, .* ON TABLE applied_migrations TO {role}"):
            await migrate(connection)
        await database.pool.execute("ALTER TABLE applied_migrations RENAME TO aside")
        with pytest.raises(MigrationError, match=f"GRANT USAGE, CREATE ON SCHEMA public TO {role}"):
            await migrate(connection)


async def test_a_database_of_an_earlier_version_is_accepted(database: Database) -> None:
    former = "2e78278cd55579e860307fe132c383c137f0eaae6438cf9ad65f40bac09abe07"
    await database.pool.execute("UPDATE applied_migrations SET digest = $1 WHERE number = 4", former)
    async with connected(database.url) as connection:
        assert await migrate(connection) == []


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


def test_the_command_waits_until_everything_is_applied(postgres_url: str, shop: MigrationSet) -> None:
    options = ["--url", postgres_url, "--set", f"shop={shop.folder}"]
    run = CliRunner()
    given_up = run.invoke(app, ["db", "wait", "--within", "0", *options])
    assert given_up.exit_code == 4
    assert "shop 0001_parcels is not applied, shop 0002_status is not applied" in given_up.output
    command = [Path(sys.executable).parent / "steadfaust", "db", "wait", "--within", str(BOUND), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert "0002_status is not applied" in waiting.stdout.readline()
        assert run.invoke(app, ["db", "migrate", *options]).exit_code == 0
        assert waiting.wait(BOUND) == 0


def test_a_newer_database_is_not_waited_for(postgres_url: str, shop: MigrationSet) -> None:
    options = ["--url", postgres_url, "--set", f"shop={shop.folder}"]
    run = CliRunner()
    assert run.invoke(app, ["db", "migrate", *options]).exit_code == 0
    (shop.folder / "0002_status.sql").unlink()  # the version before, which is rolled back to
    assert run.invoke(app, ["db", "status", *options]).exit_code == 1
    assert run.invoke(app, ["db", "wait", "--within", "0", *options]).exit_code == 0


def test_a_database_that_does_not_answer_is_waited_for() -> None:
    nowhere = ["--url", "postgresql://nobody@127.0.0.1:1/none"]
    given_up = CliRunner().invoke(app, ["db", "wait", "--within", "0", *nowhere])
    assert (given_up.exit_code, "waiting: " in given_up.output) == (4, True)


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
