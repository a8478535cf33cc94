"""Messages that are stored first and handled later, and how the database edge stands, on PostgreSQL."""

import socket
import time

import pytest

from streams.errors import MissingHeader
from streams.model.envelope import new_headers
from streams.postgres import (
    Connection,
    ConsumerInbox,
    Database,
    InboxEvent,
    QueueOptions,
    TransactionalInbox,
    database_status,
)
from streams.postgres.database import connect
from streams.postgres.database_status import database_answer, outbox_rows
from streams.postgres.inbox import ReceivedMessage
from streams.testing import FakeRecord
from tests.queue_world import PARCELS, ParcelPacked, put
from tests.relays import new_outbox, publish
from tests.waiting import BOUND

INBOX = TransactionalInbox("consumer_queue", ordered=True)


@pytest.fixture(autouse=True)
def _slow_machines_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_status, "FOR_ALL", BOUND)


def record(number: int, message_id: str) -> FakeRecord:
    headers = new_headers("orders.order.placed.v1", "o-1", source="shop", time=0.0, message_id=message_id)
    return FakeRecord("orders.order.placed.v1", 3, number, 0, b"o-1", b"%d" % number, headers)


async def receive(database: Database, *records: FakeRecord) -> list[bool]:
    async with database.transaction() as connection:
        return [await INBOX.receive(connection, each) for each in records]


async def test_what_was_received_twice_is_handled_once(database: Database) -> None:
    received = await receive(database, record(0, "a"), record(1, "b"), record(2, "a"))
    assert received == [True, True, False]
    seen: list[tuple[str, bytes, int | None]] = []
    failed: list[str] = []

    async def handle(connection: Connection, message: ReceivedMessage) -> None:
        if message.message_id == "a" and not failed:
            failed.append(message.message_id)
            raise RuntimeError("not yet")
        seen.append((message.message_id, message.payload, message.job.partition))

    worker = INBOX.worker(database, handle, options=QueueOptions(base=0.0, batch=1))
    while await worker.work_off():
        pass
    assert seen == [("a", b"0", 3), ("b", b"1", 3)]
    assert await receive(database, record(3, "b")) == [False]
    rows = await database.pool.fetch("SELECT * FROM transactional_inbox ORDER BY id")
    assert [(row["message_id"], row["processed_at"] >= row["received_at"]) for row in rows] == [
        ("a", True),
        ("b", True),
    ]
    assert await INBOX.cleanup_processed(database) == 0
    assert await INBOX.cleanup_processed(database, older_than_days=-1) == 2


async def test_a_record_without_an_id_is_not_received(database: Database) -> None:
    with pytest.raises(MissingHeader):
        await receive(database, FakeRecord("orders", 0, 0, 0, b"k", b"v", []))


async def test_what_waits_is_told_with_the_refused_rows_first(postgres_url: str) -> None:
    async with Database(postgres_url) as database:
        async with database.acquire() as connection:
            await publish(new_outbox(), connection, ("o-1", 0), ("o-2", 1))
            await connection.execute(
                "UPDATE outbox SET attempts = 2, last_error = 'too large', retry_at = now()"
                " WHERE aggregate_id = 'o-2'"
            )
            await ConsumerInbox(database, "tally").mark(connection, [InboxEvent("a", "t", "t", b"")])
        await put(database, PARCELS, ParcelPacked(parcel="a"))
        answer = await database_answer(postgres_url)
    assert (answer.missing, answer.outbox is not None) == ("", True)
    assert answer.outbox is not None
    assert (answer.outbox.unpublished, answer.outbox.failed, answer.outbox.relay) == (2, 1, "")
    assert [(row.aggregate.split()[-1], row.error) for row in answer.outbox.waiting] == [
        ("o-2", "too large"),
        ("o-1", ""),
    ]
    assert [(each.queue, each.jobs["ready"]) for each in answer.queues] == [("parcels", 1)]
    assert answer.inbox is not None
    assert answer.inbox.consumers == ["tally"]


async def test_rows_are_told_by_the_ids_of_their_messages(postgres_url: str) -> None:
    async with Database(postgres_url) as database, database.acquire() as connection:
        await publish(new_outbox(), connection, ("o-1", 0), ("o-2", 1), ("o-3", 2))
        await connection.execute("UPDATE outbox SET published_at = now() WHERE aggregate_id = 'o-1'")
        columns = (
            "position, id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source, ce_time,"
            " ce_correlationid, schema_fingerprint"
        )
        await connection.execute(
            "WITH gone AS (DELETE FROM outbox WHERE aggregate_id = 'o-2' RETURNING *)"
            f" INSERT INTO outbox_archive ({columns}, published_at) SELECT {columns}, now() FROM gone"
        )
        now = time.time()
        found = await outbox_rows(postgres_url, dict.fromkeys(("o-1:0", "o-2:1", "o-3:2", "nobody"), now))
        late = await outbox_rows(postgres_url, {"o-2:1": now - 3600})
    rows = {row.id: row for row in found.rows}
    assert (found.missing, sorted(rows)) == ("", ["o-1:0", "o-2:1", "o-3:2"])
    assert [bool(rows[each].published) for each in sorted(rows)] == [True, True, False]
    assert rows["o-3:2"].aggregate.endswith("o-3")
    assert late.rows == []  # the archive is looked at about that time only


async def test_a_database_without_the_tables_has_none_of_it(postgres_url: str) -> None:
    connection = await connect(postgres_url)
    await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    await connection.close()
    answer = await database_answer(postgres_url)
    assert (answer.missing, answer.outbox, answer.queues, answer.inbox) == ("", None, [], None)


async def test_a_database_that_accepts_and_never_answers_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_status, "FOR_ALL", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = await database_answer(f"postgresql://ann@127.0.0.1:{server.getsockname()[1]}/orders")
    assert (answer.silent, answer.missing) == (True, "PostgreSQL did not answer within 0.05 s")


async def test_a_database_that_is_away_is_told_without_password() -> None:
    nowhere = "postgresql://ann:secret@127.0.0.1:1/orders"
    alone = await database_answer(nowhere)
    assert alone.silent, "no database is another thing"
    for answer in (alone, await outbox_rows(nowhere, {"a": 0.0})):
        assert "127.0.0.1:1" in answer.missing
        assert "secret" not in answer.missing
