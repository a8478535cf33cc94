"""Names that others rely on: what dashboards, alerts, SQL of operators and other programs ask for."""

import inspect
from datetime import datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from streams.postgres import Connection, ConsumerInbox, Database, Queue, QueueOptions
from streams.postgres.inbox.inbox import CLEANUP_BATCH
from streams.postgres.queue.kinds import Kind, StatusCode
from streams.postgres.relay import After, RelayMetrics, RelayOptions
from streams.postgres.watch import DatabaseWatch
from streams.saga.messages import Command, Reply
from tests.queue_world import ParcelPacked
from tests.relays import new_outbox, publish

TEXT, BYTES, WHEN, NUMBER = "text", "bytea", "timestamp with time zone", "integer"
#: Of each table and view the columns that are promised, with their types.
COLUMNS = {
    "outbox": {
        "id": TEXT, "aggregate_type": TEXT, "aggregate_id": TEXT, "event_type": TEXT, "topic": TEXT,
        "payload": BYTES, "created_at": WHEN, "published_at": WHEN,
    },
    "consumer_inbox": {
        "event_id": TEXT,
        "consumer_name": TEXT,
        "source_topic": TEXT,
        "event_type": TEXT,
        "payload": BYTES,
        "consumed_at": WHEN,
        "processing_duration_ms": "double precision",
    },
    "transactional_inbox": {
        "id": "bigint",
        "message_id": TEXT,
        "payload": BYTES,
        "received_at": WHEN,
        "processed_at": WHEN,
    },
    "producer_queue": {
        "topic": TEXT,
        "payload": BYTES,
        "action": TEXT,
        "retry": NUMBER,
        "created": WHEN,
        "updated": WHEN,
    },
    "consumer_queue": {
        "topic": TEXT,
        "partition": NUMBER,
        "payload": BYTES,
        "retry": NUMBER,
        "created": WHEN,
        "updated": WHEN,
    },
}  # fmt: skip


class Sent(Reply, frozen=True, kw_only=True):
    TOPIC = "post.saga.replies"


class Send(Command, frozen=True, kw_only=True):
    TOPIC = "post.commands.send"
    REPLY = Sent
    weight: int


SAID = {"saga_id": "order:17", "step": "ship", "command_id": "c-1"}


@pytest.mark.parametrize("table", COLUMNS)
async def test_a_table_has_the_columns_that_are_promised(database: Database, table: str) -> None:
    rows = await database.pool.fetch(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = $1", table
    )
    found = {row["column_name"]: row["data_type"] for row in rows}
    assert found == found | COLUMNS[table]


async def test_the_indexes_are_those_that_are_promised(database: Database) -> None:
    rows = await database.pool.fetch("SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'")
    indexes = [(row["tablename"], row["indexdef"]) for row in rows]
    assert any(
        table == "consumer_inbox" and "UNIQUE" in made and made.endswith("(consumer_name, event_id)")
        for table, made in indexes
    )
    assert any(
        table == "consumer_inbox" and made.endswith("(consumer_name, consumed_at)") for table, made in indexes
    )
    assert any(table == "outbox" and made.endswith("WHERE (published_at IS NULL)") for table, made in indexes)


async def test_an_inbox_is_called_by_these_names_and_answers(database: Database) -> None:
    async def length(_connection: Connection, payload: bytes) -> int:
        return len(payload)

    inbox = ConsumerInbox(storage=database, consumer_name="tally")
    event: dict[str, Any] = {
        "event_id": "e-1",
        "source_topic": ParcelPacked.TOPIC,
        "event_type": ParcelPacked.TOPIC,
        "payload": b"four",
        "handler": length,
    }
    assert list(inspect.signature(inbox.process_idempotent).parameters) == [*event, "connection"]
    assert await inbox.process_idempotent(**event) == 4
    assert await inbox.process_idempotent(**event) is None
    assert await inbox.cleanup_old_entries(older_than_days=7) == 0
    assert inspect.signature(inbox.cleanup_old_entries).parameters["older_than_days"].default == 7
    assert CLEANUP_BATCH == 10_000


async def test_an_outbox_is_degraded_after_five_minutes(database: Database, connection: Connection) -> None:
    registry = CollectorRegistry()
    RelayMetrics(registry)
    watch = DatabaseWatch(database, registry)
    await publish(new_outbox(), connection, ("o-1", 0))
    for minutes, is_well in ((4, True), (6, False)):
        await database.pool.execute("UPDATE outbox SET created_at = now() - $1 * interval '1 min'", minutes)
        await watch.look()
        assert (await watch.outbox() == "") == is_well
    assert registry.get_sample_value("outbox_unpublished_rows") == 1
    assert (registry.get_sample_value("outbox_oldest_unpublished_seconds") or 0) >= 360
    assert (registry.get_sample_value("outbox_table_bytes") or 0) > 0
    for name in ("outbox_publish_latency_seconds_count", "outbox_publish_failures_total"):
        assert registry.get_sample_value(name) == 0


def test_bounds_are_those_that_are_promised() -> None:
    assert RelayOptions().batch >= 100
    assert set(After) == {"mark", "delete", "archive"}
    assert QueueOptions().tries == 3


async def test_a_queue_keeps_what_each_kind_of_message_says(database: Database) -> None:
    assert set(Kind) == {"event", "command", "reply"}
    assert set(StatusCode) == {"success", "error", "system error"}
    async with database.transaction() as connection:
        await Queue("producer_queue").enqueue_many(
            connection,
            [
                ParcelPacked(parcel="a"),
                Send(**SAID, attempt=1, expires=0.0, weight=3),
                Sent(**SAID, outcome="refused"),
            ],
        )
    told = "SELECT kind, topic, saga_id, reply_topic, status_code FROM queue_job ORDER BY id"
    assert [tuple(row) for row in await database.pool.fetch(told)] == [
        ("event", ParcelPacked.TOPIC, None, None, None),
        ("command", Send.TOPIC, "order:17", Sent.TOPIC, None),
        ("reply", Sent.TOPIC, "order:17", None, "error"),
    ]
    first = (await database.pool.fetch("SELECT * FROM producer_queue ORDER BY id"))[0]
    assert (first["topic"], first["action"], first["retry"]) == (ParcelPacked.TOPIC, "handle", 0)
    assert isinstance(first["created"], datetime)
