"""A database without migrations, with too old or too new ones, read-only, or with too few rights."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agents.api.readiness import read_only, unready
from agents.api.testing import ApiProcess
from streams.postgres import LIBRARY, Database, migrate
from streams.postgres.database_status import database_answer
from streams.postgres.watch import DatabaseWatch
from tests.integration.test_orders_api_process import ask, health, place
from tests.orders_shop import MIGRATIONS, shop_on
from tests.postgres import connected, in_a_loop, migrated, of_database

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.promise("api-unready"),
]
MIGRATE = "run `steadfaust db migrate`"


@pytest.fixture
def empty_url(postgres_server: str) -> Iterator[str]:
    """Of a database that nobody has migrated."""
    name = f"empty_{uuid.uuid4().hex}"
    in_a_loop(_execute(postgres_server, f'CREATE DATABASE "{name}"'))
    yield of_database(postgres_server, name)
    in_a_loop(_execute(postgres_server, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _execute(url: str, statement: str) -> None:
    async with connected(url) as connection:
        await connection.execute(statement)


def test_an_api_on_an_empty_database_is_down_with_advice(empty_url: str, tmp_path: Path) -> None:
    settings = os.environ | {"STEADFAUST_POSTGRES_URL": empty_url, "STEADFAUST_API_PROJECTION": "false"}
    with ApiProcess(tmp_path / "api.log", settings) as api:
        status, report = health(api.url)
        assert (status, report["status"]) == (503, "DOWN")
        assert MIGRATE in report["reasons"][0]
        for status, said in (place(api.url, "k-1"), ask(f"{api.url}/orders"), ask(f"{api.url}/orders/o")):
            assert status == 503
            assert MIGRATE in said["detail"]
        in_a_loop(migrated(empty_url, MIGRATIONS))
        assert place(api.url, "k-1")[0] == 202


async def test_too_old_migrations_are_named(postgres_url: str) -> None:
    async with Database(postgres_url) as database:
        assert "lacks migration 0001_orders of 'orders'" in await unready(database)
        await database.pool.execute("DELETE FROM applied_migrations WHERE number = 11")
        assert "0011_queue_due of 'steadfaust' and 1 more" in await unready(database)


async def test_a_database_that_is_newer_serves_and_is_told(orders_url: str) -> None:
    async with Database(orders_url) as database:
        await database.pool.execute(
            'INSERT INTO applied_migrations SELECT "set", 99, name, digest FROM applied_migrations'
            " WHERE \"set\" = 'steadfaust' AND number = 1"
        )
        assert await unready(database) == ""
        watch = DatabaseWatch(database, CollectorRegistry())
        await watch.look()
        assert "run a newer one" in await watch.migrations()


async def test_a_read_only_database_is_told(orders_url: str) -> None:
    async with Database(f"{orders_url}?default_transaction_read_only=on") as database:
        assert await unready(database) == ""
        assert "read-only" in await read_only(database)


async def test_a_role_without_rights_is_told_which(orders_url: str) -> None:
    name = f"poor_{uuid.uuid4().hex[:8]}"
    await _execute(orders_url, f"CREATE ROLE {name} LOGIN")
    try:
        poor = orders_url.replace("steadfaust@", f"{name}@")
        async with Database(poor) as database:
            assert f"GRANT SELECT, INSERT, UPDATE ON TABLE idempotency_keys TO {name}" in await unready(
                database
            )
        async with shop_on(poor) as shop:
            answer = await shop.place("k-1")
            assert answer.status_code == 503
            assert "permission denied for table" in answer.json()["detail"]
            assert "GRANT" in answer.json()["detail"]
        found = await database_answer(poor)
        assert "permission denied" in found.missing
    finally:
        await _execute(orders_url, f"DROP ROLE {name}")


@pytest.mark.parametrize(
    "command",
    [
        ("outbox", "status"),
        ("outbox", "list"),
        ("outbox", "cleanup", "--older-than", "1"),
        ("queue", "status"),
        ("queue", "list", "mails"),
        ("inbox", "status"),
    ],
    ids=" ".join,
)
def test_commands_on_an_empty_database_say_what_to_run(empty_url: str, command: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [Path(sys.executable).with_name("steadfaust"), *command, "--url", empty_url],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), ended.stderr
    assert MIGRATE in ended.stderr


async def test_a_look_at_an_empty_database_says_what_to_run(empty_url: str) -> None:
    async with Database(empty_url) as database:
        watch = DatabaseWatch(database, CollectorRegistry())
        watch._looked -= 1_000
        await watch.look()
        assert MIGRATE in await watch.outbox()
        async with database.acquire() as connection:
            await migrate(connection, [LIBRARY])
        await watch.look()
        assert await watch.outbox() == ""
