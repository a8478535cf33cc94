"""`steadfaust outbox` on a real PostgreSQL."""

import base64
import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from streams.cli.main import app
from streams.postgres import Database
from streams.postgres.database import connect
from streams.postgres.outbox import OutboxRow
from streams.postgres.outbox.operations import erase
from streams.postgres.outbox_owner import RelayKind, hand_over
from streams.postgres.statements import statements
from streams.testing import MemoryPublisher
from tests.postgres import connected, in_a_loop
from tests.relays import Step, by_aggregate, drained, new_outbox, publish, relaying

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(postgres_url: str) -> Run:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["outbox", *arguments, "--url", postgres_url])
        return result.exit_code, result.stdout

    return run


def fill(url: str, *statements: str) -> None:
    async def work() -> None:
        async with connected(url) as connection:
            await publish(new_outbox(), connection, ("o-1", 1), ("o-1", 2), ("o-2", 1), ("o-2", 2))
            for statement in statements:
                await connection.execute(statement)

    in_a_loop(work())


def test_rows_of_an_aggregate_are_erased_whatever_their_state(postgres_url: str) -> None:
    fill(postgres_url, archiving("'o-1:1'"))

    async def work() -> tuple[int, int, int]:
        connection = await connect(postgres_url)
        try:
            counted, _ = await erase(connection, "o-1", dry_run=True)
            erased, _ = await erase(connection, "o-1")
            return counted, erased, (await erase(connection, "o-1"))[0] + (await erase(connection, "o-2"))[0]
        finally:
            await connection.close()

    assert in_a_loop(work()) == (2, 2, 2)


def ids(lines: str) -> list[str]:
    return [json.loads(line)["id"] for line in lines.splitlines()]


def listed(run: Run, *options: str) -> list[str]:
    return ids(run("list", *options, "--json")[1])


REFUSED = (
    "UPDATE outbox SET attempts = 3, last_error = 'too large', retry_at = now() + interval '1 hour'"
    " WHERE id = 'o-2:1'"
)
PUBLISHED = (
    "UPDATE outbox SET published_at = now() - interval '8 days', created_at = now() - interval '8 days'"
    " WHERE id = 'o-1:1'"
)


def archiving(ids: str) -> str:
    """What a relay does with rows that it has published, of these ids."""
    return statements("relay/relay.sql")["archive"].replace("position = ANY ($1::bigint[])", f"id IN ({ids})")


def test_what_waits_and_what_was_refused_is_seen(postgres_url: str, run: Run) -> None:
    assert run("list") == (3, "")
    fill(postgres_url, REFUSED, PUBLISHED)
    code, told = run("status", "--json")
    found = json.loads(told)
    assert (code, found["unpublished"], found["failed"]) == (4, 3, 1)
    assert found["table_bytes"] > 0
    assert listed(run) == ["o-1:2", "o-2:1", "o-2:2"]
    assert listed(run, "--state", "failed") == ["o-2:1"]
    assert listed(run, "--state", "published") == ["o-1:1"]
    assert listed(run, "--aggregate", "o-2", "--limit", "1") == ["o-2:1"]
    assert "too large" in run("list")[1]
    assert "too large" in run("show", "o-2:1")[1]
    assert run("show", "none")[0] == 3


def test_rows_that_nobody_relays_are_a_problem(postgres_url: str, run: Run) -> None:
    assert run("status")[0] == 0
    fill(postgres_url)
    code, told = run("status")
    assert code == 4
    assert "problem: no relay runs" in told
    in_a_loop(_hand_over(postgres_url))
    code, told = run("status", "--json")
    assert code == 4
    assert "which has no replication slot: nothing is relayed" in json.loads(told)["problem"]


async def _hand_over(url: str) -> None:
    connection = await connect(url)
    await hand_over(connection, RelayKind.CDC)
    await connection.close()


def test_a_refused_row_is_published_again_at_once(postgres_url: str, run: Run) -> None:
    fill(postgres_url, REFUSED)
    assert ids(run("republish", "--failed", "--dry-run", "--json")[1]) == ["o-2:1"]
    assert run("status")[0] == 4
    assert ids(run("republish", "--failed", "--json")[1]) == ["o-2:1"]
    assert json.loads(run("status", "--json")[1])["failed"] == 0
    assert run("republish", "none")[0] == 3
    assert run("republish")[0] == 2


def test_cleanup_removes_what_was_published_long_ago_and_nothing_else(postgres_url: str, run: Run) -> None:
    fill(postgres_url, REFUSED, PUBLISHED)
    assert json.loads(run("cleanup", "--dry-run", "--json")[1]) == {"rows": 1, "dry_run": True}
    assert json.loads(run("cleanup", "--step", "1", "--json")[1])["rows"] == 1
    assert listed(run) == ["o-1:2", "o-2:1", "o-2:2"]
    assert run("list", "--state", "published")[0] == 3


@pytest.mark.promise("outbox-republished")
def test_republished_rows_come_behind_those_that_wait(postgres_url: str, run: Run) -> None:
    fill(
        postgres_url,
        archiving("'o-1:1', 'o-2:1'"),
        "UPDATE outbox SET published_at = now() WHERE id = 'o-1:2'",
    )
    assert listed(run) == ["o-2:2"]
    assert listed(run, "--state", "archived") == ["o-1:1", "o-2:1"]
    assert listed(run, "--state", "archived", "--aggregate", "o-2") == ["o-2:1"]
    assert json.loads(run("show", "o-1:1", "--json")[1])["published_at"]
    assert ids(run("republish", "o-1:2", "o-1:1", "--dry-run", "--json")[1]) == ["o-1:1", "o-1:2"]
    assert listed(run) == ["o-2:2"]
    assert run("republish", "o-1:2", "o-1:1")[0] == 0
    assert listed(run) == ["o-2:2", "o-1:1", "o-1:2"]
    assert listed(run, "--state", "archived") == ["o-2:1"]

    async def relayed() -> list[OutboxRow]:
        publisher = MemoryPublisher()
        async with Database(postgres_url) as database, relaying(postgres_url, publisher):
            await drained(database)
        return publisher.written

    rows = in_a_loop(relayed())
    assert by_aggregate(rows) == {"o-2": [2], "o-1": [1, 2]}
    codec = new_outbox().codec(Step)
    assert codec.decode(rows[1].payload, rows[1].schema_fingerprint.encode()) == Step(order="o-1", number=1)
    assert run("status", "--json")[0] == 0


@pytest.mark.promise("outbox-republished")
def test_of_an_id_archived_twice_the_newest_is_republished(postgres_url: str, run: Run) -> None:
    archive = archiving("'o-1:1'")
    fill(postgres_url, archive)
    fill_again = "UPDATE outbox_archive SET published_at = published_at - interval '1 day'"

    async def work() -> None:
        async with connected(postgres_url) as connection:
            await connection.execute(fill_again)
            await publish(new_outbox(), connection, ("o-1", 1), note="newer")
            await connection.execute(archive)

    in_a_loop(work())
    assert ids(run("republish", "o-1:1", "--json")[1]) == ["o-1:1"]
    assert listed(run, "--aggregate", "o-1") == ["o-1:2", "o-1:1"]
    payload = base64.b64decode(json.loads(run("show", "o-1:1", "--json")[1])["payload"])
    assert b"newer" in payload
    assert len(listed(run, "--state", "archived")) == 1
