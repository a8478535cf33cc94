"""How the database edge stands, asked of a real PostgreSQL."""

import time

from streams.postgres import ConsumerInbox, Database, InboxEvent
from streams.postgres.database import connect
from streams.postgres.database_status import database_answer, outbox_rows
from tests.queue_world import PARCELS, ParcelPacked, put
from tests.relays import new_outbox, publish


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


async def test_a_database_that_is_away_is_told_without_password() -> None:
    nowhere = "postgresql://ann:secret@127.0.0.1:1/orders"
    for answer in (await database_answer(nowhere), await outbox_rows(nowhere, {"a": 0.0})):
        assert "127.0.0.1:1" in answer.missing
        assert "secret" not in answer.missing
