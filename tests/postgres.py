"""PostgreSQL for tests: one server for a process of tests, a database of its own for each test."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from streams.local import local_stack
from streams.postgres import LIBRARY, Connection, Database, MigrationSet, migrate
from streams.postgres.database import connect
from tests.waiting import eventually_async

T = TypeVar("T")
#: Whether some session of this database waits for another one's transaction.
IS_WAITING = """
SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server's first database. Nothing in it outlives the tests, so it syncs nothing."""
    with local_stack(tmp_path_factory.mktemp("postgres"), brokers=0, databases=["tests"]) as stack:
        url = stack.url("postgres")
        for setting in ("fsync", "synchronous_commit"):
            in_a_loop(_execute(url, f"ALTER SYSTEM SET {setting} = off"))
        in_a_loop(_execute(url, "SELECT pg_reload_conf()"))
        in_a_loop(_template(url))
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    in_a_loop(_execute(postgres_server, f'CREATE DATABASE "{name}" TEMPLATE migrated'))
    yield of_database(postgres_server, name)
    in_a_loop(_execute(postgres_server, f'DROP DATABASE "{name}" WITH (FORCE)'))


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.stack)])
def url_or_memory(request: pytest.FixtureRequest) -> str:
    """The URL of a database; empty for the fake in memory, which starts no server."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else ""


def of_database(url: str, name: str) -> str:
    server, question, options = url.partition("?")
    return f"{server.rsplit('/', 1)[0]}/{name}{question}{options}"


def in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """What it returns; in a loop of its own, whatever the test has."""
    with asyncio.Runner() as runner:
        return runner.run(work)


@asynccontextmanager
async def connected(url: str, **how: Any) -> AsyncIterator[Connection]:
    connection = await connect(url, **how)
    try:
        yield connection
    finally:
        await connection.close()


async def migrated(url: str, *sets: MigrationSet) -> None:
    """Apply these migrations too."""
    async with connected(url) as connection:
        await migrate(connection, [LIBRARY, *sets])


async def until(database: Database, question: str, *arguments: object) -> None:
    """Wait until the database answers a question with yes."""
    await eventually_async(lambda: database.pool.fetchval(question, *arguments), question, every=0.01)


async def _template(url: str) -> None:
    await _execute(url, "CREATE DATABASE migrated")
    await migrated(of_database(url, "migrated"))


async def _execute(url: str, statement: str) -> None:
    async with connected(url) as connection:
        await connection.execute(statement)
