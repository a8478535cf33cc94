"""`steadfaust outbox` on a real PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from streams.cli.main import app
from streams.postgres.database import connect
from tests.postgres import in_a_loop
from tests.relays import new_outbox, publish


@pytest.fixture
def run(postgres_url: str) -> Callable[..., tuple[int, str]]:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["outbox", *arguments, "--url", postgres_url])
        return result.exit_code, result.stdout

    return run


def fill(url: str, *statements: str) -> None:
    async def work() -> None:
        connection = await connect(url)
        try:
            await publish(new_outbox(), connection, ("o-1", 1), ("o-1", 2), ("o-2", 1), ("o-2", 2))
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    in_a_loop(work())


def ids(lines: str) -> list[str]:
    return [json.loads(line)["id"] for line in lines.splitlines()]


REFUSED = (
    "UPDATE outbox SET attempts = 3, last_error = 'too large', retry_at = now() + interval '1 hour'"
    " WHERE id = 'o-2:1'"
)
PUBLISHED = (
    "UPDATE outbox SET published_at = now() - interval '8 days', created_at = now() - interval '8 days'"
    " WHERE id = 'o-1:1'"
)


def test_what_waits_and_what_was_refused_is_seen(
    postgres_url: str, run: Callable[..., tuple[int, str]]
) -> None:
    assert run("list") == (3, "")
    fill(postgres_url, REFUSED, PUBLISHED)
    code, told = run("status", "--json")
    found = json.loads(told)
    assert (code, found["unpublished"], found["failed"]) == (4, 3, 1)
    assert found["table_bytes"] > 0
    assert ids(run("list", "--json")[1]) == ["o-1:2", "o-2:1", "o-2:2"]
    assert ids(run("list", "--state", "failed", "--json")[1]) == ["o-2:1"]
    assert ids(run("list", "--state", "published", "--json")[1]) == ["o-1:1"]
    assert ids(run("list", "--aggregate", "o-2", "--limit", "1", "--json")[1]) == ["o-2:1"]
    assert "too large" in run("list")[1]
    assert "too large" in run("show", "o-2:1")[1]
    assert run("show", "none")[0] == 3


def test_a_refused_row_is_published_again_at_once(
    postgres_url: str, run: Callable[..., tuple[int, str]]
) -> None:
    fill(postgres_url, REFUSED)
    assert ids(run("republish", "--failed", "--dry-run", "--json")[1]) == ["o-2:1"]
    assert run("status")[0] == 4
    assert ids(run("republish", "--failed", "--json")[1]) == ["o-2:1"]
    assert run("status")[0] == 0
    assert run("republish", "none")[0] == 3
    assert run("republish")[0] == 2


def test_cleanup_removes_what_was_published_long_ago_and_nothing_else(
    postgres_url: str, run: Callable[..., tuple[int, str]]
) -> None:
    fill(postgres_url, REFUSED, PUBLISHED)
    assert json.loads(run("cleanup", "--dry-run", "--json")[1]) == {"rows": 1, "dry_run": True}
    assert json.loads(run("cleanup", "--step", "1", "--json")[1])["rows"] == 1
    assert ids(run("list", "--json")[1]) == ["o-1:2", "o-2:1", "o-2:2"]
    assert run("list", "--state", "published")[0] == 3
