"""`steadfaust inbox` and `steadfaust queue` on a real PostgreSQL, and what `ops/` has for them."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import Result
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import CliRunner

from streams.cli.main import app
from streams.errors import PermanentError, SettingsError
from streams.postgres import Connection, ConsumerInbox, Database, InboxEvent, InboxMetrics, Job, QueueWorker
from tests.queue_world import IN_ORDER, ParcelPacked, put

T = TypeVar("T")
NOTHING = 3
Command = Callable[..., Result]


@pytest.fixture
def command(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("STEADFAUST_POSTGRES_URL", postgres_url)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def run(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    async def inside() -> T:
        async with Database(url) as database:
            return await work(database)

    return asyncio.run(inside())


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


async def handle_two_old_events_and_a_new_one(database: Database) -> None:
    inbox = ConsumerInbox(database, "projection")

    async def nothing(connection: Connection, events: Any) -> None:
        pass

    await inbox.process_batch([InboxEvent(f"e-{n}", "orders", "OrderPlaced", b"") for n in range(3)], nothing)
    await database.pool.execute(
        "UPDATE consumer_inbox SET consumed_at = now() - interval '16 days' WHERE event_id <> 'e-2'"
    )


def test_an_inbox_is_shown_and_cleaned_up_when_told_to(postgres_url: str, command: Command) -> None:
    assert command("inbox", "status").exit_code == NOTHING
    run(postgres_url, handle_two_old_events_and_a_new_one)
    (shown,) = lines(command("inbox", "status", "--json"))
    assert (shown["consumer_name"], shown["rows"], shown["last_hour"]) == ("projection", 3, 1)
    assert shown["table_bytes"] > 0
    said = command("inbox", "cleanup", "--older-than-days", "7")
    assert isinstance(said.exception, SettingsError), "replays need the entries for 14 days"
    (dry,) = lines(command("inbox", "cleanup", "--dry-run", "--json"))
    assert dry == {"consumer_name": "projection", "entries": 2, "deleted": False}
    (cleaned,) = lines(command("inbox", "cleanup", "--json"))
    assert cleaned == {"consumer_name": "projection", "entries": 2, "deleted": True}
    assert "1 entries" in command("inbox", "status").stdout
    assert command("inbox", "status", "mailer").exit_code == NOTHING


async def fail_one_of_a_key(database: Database) -> None:
    async def fails(connection: Connection, job: Job) -> None:
        raise PermanentError("no such street")

    await put(database, IN_ORDER, *(ParcelPacked(parcel=name) for name in "ab"))
    assert await QueueWorker(database, IN_ORDER, fails).work_off() == 2


@pytest.mark.promise("queue-order")
def test_failed_jobs_are_shown_retried_and_discarded(postgres_url: str, command: Command) -> None:
    assert command("queue", "status").exit_code == NOTHING
    run(postgres_url, fail_one_of_a_key)
    states = {each["state"]: each["jobs"] for each in lines(command("queue", "status", "--json"))}
    assert states["failed"] == 1
    (failed,) = lines(command("queue", "list", "parcels", "--state", "failed", "--json"))
    assert failed["error"] == "PermanentError: no such street"
    (shown,) = lines(command("queue", "show", str(failed["id"]), "--json"))
    assert (shown["retry"], json.loads(bytes.fromhex(shown["payload"]))["parcel"]) == (1, "a")
    assert "header        ce_id: " in command("queue", "show", str(failed["id"])).stdout

    (dry,) = lines(command("queue", "discard", "parcels", "--dry-run", "--json"))
    assert dry == {"operation": "discard", "jobs": [failed["id"]], "done": False}
    (again,) = lines(command("queue", "retry", "parcels", "--yes", "--json"))
    assert again == {"operation": "retry", "jobs": [failed["id"]], "done": True}
    assert command("queue", "list", "parcels", "--state", "failed").exit_code == NOTHING
    (gone,) = lines(command("queue", "discard", "parcels", str(failed["id"]), "--json"))
    assert gone["jobs"] == [failed["id"]]
    assert command("queue", "show", str(failed["id"])).exit_code == NOTHING
    assert [each["topic"] for each in lines(command("queue", "list", "parcels", "--json"))] == [
        "post.parcel.packed.v1"
    ]


OPS = Path(__file__).parents[2] / "ops"


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    registry = CollectorRegistry()
    metrics = InboxMetrics(registry)
    metrics.processed("projection", "OrderPlaced", 0.1)
    metrics.duplicate("projection", "OrderPlaced")
    told = set(re.findall(r"^(\w+)\{", generate_latest(registry).decode(), re.MULTILINE))
    board = json.loads((OPS / "grafana-consumer-inbox.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"consumer_inbox_\w+", target["expr"])
    }
    assert asked <= told
    assert {panel["title"] for panel in board["panels"]} >= {
        "Duplicate rate by consumer",
        "Mean processing time by consumer",
        "p99 processing time by consumer",
    }


async def test_the_statements_for_size_growth_and_the_oldest_row_run(postgres_url: str) -> None:
    async with Database(postgres_url) as database:
        await database.pool.execute((OPS / "consumer-inbox.sql").read_text())
