"""PostgreSQL of the local stack, without Kafka: it comes up with its databases, and goes and comes back."""

import signal
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from streams.local import Stack, local_stack, stop
from streams.local.postgres import USER
from tests.integration.stacks import does_not_start, steadfaust
from tests.waiting import eventually_async

pytestmark = pytest.mark.stack


def family(stack: Stack) -> list[psutil.Process]:
    server = psutil.Process(stack.state.processes["postgres"].pid)
    return [server, *server.children(recursive=True)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with local_stack(tmp_path_factory.mktemp("postgres"), brokers=0, databases=["orders", "bank"]) as stack:
        yield stack


async def test_the_server_has_its_databases_and_logical_replication(stack: Stack) -> None:
    url = stack.url("postgres")
    assert url.startswith(f"postgresql://{USER}@127.0.0.1:")
    assert url.endswith("/orders")
    connection = await asyncpg.connect(url)
    try:
        assert await connection.fetchval("SELECT current_database()") == "orders"
        named = await connection.fetch("SELECT datname FROM pg_database WHERE NOT datistemplate")
        assert {row["datname"] for row in named} == {"postgres", "orders", "bank"}
        assert (await connection.fetchval("SHOW server_version")).startswith("18.")
        assert await connection.fetchval("SHOW wal_level") == "logical"
        assert await connection.fetchval("SHOW max_slot_wal_keep_size") == "512MB"
        assert await connection.fetchval("SHOW unix_socket_directories") == ""
    finally:
        await connection.close()


def test_it_never_runs_as_root(stack: Stack) -> None:
    assert all(process.uids().effective != 0 for process in family(stack))


async def test_a_killed_server_comes_back_with_what_was_committed(stack: Stack) -> None:
    url, before = stack.url("postgres"), family(stack)
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    busy = family(stack)  # with the child that serves us, which outlives a killed server for a while
    assert len(busy) > len(before)

    stack.stop_process("postgres")
    assert not stack.state.processes["postgres"].up
    assert alive(busy) == []
    with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
        await connection.fetchval("SELECT 1")
    with pytest.raises(ConnectionRefusedError):
        await asyncpg.connect(url)

    stack.start_process("postgres")
    assert stack.url("postgres") == url
    again = await asyncpg.connect(url)
    assert await again.fetchval("SELECT one FROM kept") == 1
    await again.close()


async def test_the_command_keeps_data_and_adds_databases(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.steadfaust.local]\ndatabases = ["shop"]\n')
    var = tmp_path / "var"
    try:
        assert steadfaust("status", cwd=tmp_path).returncode == 3
        said = steadfaust("up", "--brokers", "0", cwd=tmp_path).stdout.splitlines()
        stack = Stack(var)
        assert f"postgres {stack.url('postgres')}" in said
        client = await asyncpg.connect(stack.url("postgres"))
        await client.execute("CREATE TABLE kept AS SELECT 1 AS one")
        running = family(stack)
    finally:
        assert steadfaust("down", cwd=tmp_path).stdout == "stopped\n"
    assert steadfaust("down", cwd=tmp_path).stdout == "already down\n"
    assert alive(running) == []
    assert "database system is shut down" in (var / "log" / "postgres.log").read_text()
    client.terminate()

    async with local_stack(var, brokers=0, databases=["shop", "bank"]) as stack:
        url = stack.url("postgres")
        assert await ask(url, "SELECT one FROM kept") == 1
        assert await ask(url.replace("/shop", "/bank"), "SELECT current_database()") == "bank"


async def test_a_server_that_dies_unasked_is_started_again(tmp_path: Path) -> None:
    async with local_stack(tmp_path, brokers=0, databases=["orders"]) as stack:
        url, log = stack.url("postgres"), tmp_path / "log" / "supervisor.log"
        await ask(url, "CREATE TABLE kept AS SELECT 1 AS one")
        before = stack.state.processes["postgres"].pid
        stack.signal_process("postgres", signal.SIGKILL)
        await eventually_async(lambda: "postgres died (SIGKILL)" in log.read_text(), "the death is told")
        await eventually_async(lambda: log.read_text().count("postgres answers on") == 2, "it answers again")
        found = stack.var.read()
        assert found is not None
        assert found.processes["postgres"].pid != before
        assert await ask(url, "SELECT one FROM kept") == 1


def test_stop_ends_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    with local_stack(tmp_path, brokers=0, databases=["orders"]) as stack:
        running = family(stack)
        supervisor = psutil.Process(stack.state.supervisor_pid)
        supervisor.kill()
        supervisor.wait()
        assert running[0] in alive(running)
        assert stop(tmp_path)
        assert alive(running) == []


def test_a_database_name_that_would_need_quotes_is_one_line(tmp_path: Path) -> None:
    why = r"^a database cannot be named 'Orders': use at most 63 lower-case"
    does_not_start(why, tmp_path, brokers=0, databases=["Orders"])


async def ask(url: str, question: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()
