"""The queues `producer_queue` and `consumer_queue` by SQL, as those who know them use them."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from streams.postgres import Connection, Database, Queue, QueueOptions, QueueWorker
from streams.postgres.database import connect
from streams.postgres.queue import Job
from tests.relays import Step
from tests.waiting import eventually_async

#: Each queue, and what a plain INSERT gives.
QUEUES = [
    ("producer_queue", "topic, data, action", "'AddOrder', 'test'::bytea, 'handle'"),
    ("consumer_queue", "topic, partition, data", "'AddOrder', 3, 'test'::bytea"),
]
both = pytest.mark.parametrize(("queue", "columns", "values"), QUEUES)


@pytest.fixture
async def told(postgres_url: str) -> AsyncIterator[list[str]]:
    heard: list[str] = []
    ear = await connect(postgres_url)
    for channel in ("producer_queue", "consumer_queue", "end"):
        await ear.add_listener(channel, lambda *got: heard.append(got[2]))
    yield heard
    await ear.close()


async def until_the_end(connection: Connection, told: list[str]) -> None:
    await connection.execute("SELECT pg_notify('end', '')")
    await eventually_async(lambda: "end" in told, "the last notification")


@both
async def test_a_plain_insert_is_a_job_of_the_queue(
    database: Database, connection: Connection, queue: str, columns: str, values: str
) -> None:
    made = await connection.fetchval(f"INSERT INTO {queue} ({columns}) VALUES ({values}) RETURNING id")
    row = await connection.fetchrow(f"SELECT * FROM {queue} WHERE retry < 3 ORDER BY created_at LIMIT 1")
    assert row is not None
    assert (row["id"], row["topic"], row["data"], row["retry"]) == (made, "AddOrder", b"test", 0)
    assert (row["created_at"], row["updated_at"], row["payload"]) == (row["created"], row["updated"], b"test")
    done: list[Job] = []

    async def handle(connection: Connection, job: Job) -> None:
        done.append(job)

    await QueueWorker(database, Queue(queue), handle).work_off()
    (job,) = done
    assert (job.id, job.payload, job.envelope.type) == (made, b"test", "AddOrder")
    assert job.envelope.correlation_id == job.envelope.id
    assert job.partition == (3 if queue == "consumer_queue" else None)
    assert await connection.fetchval(f"SELECT count(*) FROM {queue}") == 0


@both
async def test_a_row_notifies_the_channel_of_its_queue(
    connection: Connection, told: list[str], queue: str, columns: str, values: str
) -> None:
    await connection.execute(f"INSERT INTO {queue} ({columns}) VALUES ({values}), ({values})")
    await Queue(queue).enqueue(connection, Step(order="o-1", number=1))
    await Queue("emails").enqueue(connection, Step(order="o-1", number=1))
    await until_the_end(connection, told)
    assert told == [queue, queue, "end"]


@both
async def test_a_handler_of_its_own_counts_tries_and_deletes(
    connection: Connection, queue: str, columns: str, values: str
) -> None:
    made = await connection.fetchval(f"INSERT INTO {queue} ({columns}) VALUES ({values}) RETURNING id")
    async with connection.transaction():
        (row,) = await connection.fetch(
            f"SELECT * FROM {queue} WHERE retry < 3 ORDER BY created_at LIMIT 10 FOR UPDATE SKIP LOCKED"
        )
        await connection.execute(
            f"UPDATE {queue} SET retry = retry + 1, updated_at = NOW() WHERE id = $1", row["id"]
        )
    assert await connection.fetchval(f"SELECT retry FROM {queue} WHERE id = $1", made) == 1
    assert await connection.execute(f"DELETE FROM {queue} WHERE id = $1", made) == "DELETE 1"


async def test_a_sleeping_worker_is_woken_by_a_plain_insert(
    connection: Connection, postgres_url: str
) -> None:
    heard: list[str] = []
    await connection.execute("INSERT INTO queue_wake (queue, asleep) VALUES ('producer_queue', true)")
    ear = await connect(postgres_url)
    for channel in ("steadfaust_queue", "end"):
        await ear.add_listener(channel, lambda *got: heard.append(got[3] or got[2]))
    for _ in range(2):
        await connection.execute("INSERT INTO producer_queue (topic, data) VALUES ('t', '')")
    await until_the_end(connection, heard)
    await ear.close()
    assert heard == ["producer_queue", "end"]


@pytest.mark.parametrize("values", ["NULL, 'x'", "'', 'x'", "'t', NULL"])
async def test_a_job_without_topic_or_bytes_is_refused(connection: Connection, values: str) -> None:
    with pytest.raises(asyncpg.NotNullViolationError):
        await connection.execute(f"INSERT INTO producer_queue (topic, data) VALUES ({values})")


async def test_a_topic_of_any_letters_is_kept(database: Database, connection: Connection) -> None:
    await connection.execute(
        "INSERT INTO consumer_queue (topic, data) VALUES ('best\u00e4llning \u20ac', '')"
    )
    types: list[str] = []

    async def handle(connection: Connection, job: Job) -> None:
        types.append(job.envelope.type)

    await QueueWorker(database, Queue("consumer_queue"), handle, options=QueueOptions(batch=1)).work_off()
    assert types == ["best\u00e4llning \u20ac"]
