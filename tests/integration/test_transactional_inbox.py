"""Messages that are stored first and handled later, on a real PostgreSQL."""

import pytest

from streams.errors import MissingHeader
from streams.model.envelope import new_headers
from streams.postgres import Connection, Database, QueueOptions, TransactionalInbox
from streams.postgres.inbox import ReceivedMessage
from streams.testing import FakeRecord

INBOX = TransactionalInbox("consumer_queue", ordered=True)


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
