"""The consumer inbox on a real PostgreSQL."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from streams.errors import SettingsError
from streams.postgres import Connection, ConsumerInbox, Database, InboxEvent, InboxMetrics
from streams.units import DAY
from tests.postgres import IS_WAITING, until

TOPIC = "orders.order.placed.v1"


Handler = Callable[[Connection, bytes], Awaitable[Any]]


class HandlerBroke(Exception):
    pass


@pytest.fixture
async def database(database: Database) -> Database:
    await database.pool.execute("CREATE TABLE sums (name text PRIMARY KEY, total int)")
    return database


@pytest.fixture
def inbox(database: Database) -> ConsumerInbox:
    return ConsumerInbox(database, "projection")


async def add(connection: Connection, payload: bytes) -> int:
    """Add the payload to the sum; returns what that is now."""
    total: int = await connection.fetchval(
        "INSERT INTO sums VALUES ('all', $1)"
        " ON CONFLICT (name) DO UPDATE SET total = sums.total + $1 RETURNING total",
        int(payload),
    )
    return total


async def fails(connection: Connection, payload: bytes) -> None:
    await add(connection, payload)
    raise HandlerBroke


async def process(
    inbox: ConsumerInbox, event_id: str = "e-1", payload: bytes = b"5", handler: Handler = add
) -> Any:
    return await inbox.process_idempotent(event_id, TOPIC, "OrderPlaced", payload, handler)


async def total(database: Database) -> int:
    return await database.pool.fetchval("SELECT coalesce(sum(total), 0)::int FROM sums")  # type: ignore[no-any-return]


async def entries(database: Database) -> list[str]:
    rows = await database.pool.fetch("SELECT event_id FROM consumer_inbox ORDER BY event_id")
    return [row["event_id"] for row in rows]


async def test_an_entry_says_what_was_handled_and_how_long(database: Database, inbox: ConsumerInbox) -> None:
    async def slowly(connection: Connection, payload: bytes) -> None:
        await connection.execute("SELECT pg_sleep(0.02)")

    await process(inbox, handler=slowly)
    row = await database.pool.fetchrow(
        "SELECT *, consumed_at <= clock_timestamp() AS past FROM consumer_inbox"
    )
    assert row is not None
    kept = {"event_id": "e-1", "consumer_name": "projection", "source_topic": TOPIC, "payload": b"5"}
    assert kept | {"event_type": "OrderPlaced", "past": True} == {
        name: value for name, value in row.items() if name not in ("consumed_at", "processing_duration_ms")
    }
    assert row["processing_duration_ms"] >= 20


async def test_each_consumer_handles_an_event_once(database: Database, inbox: ConsumerInbox) -> None:
    other = ConsumerInbox(database, "mailer")
    assert await process(inbox) == 5
    assert await process(other) == 10
    assert await process(other) is None


@pytest.mark.promise("inbox-once")
@pytest.mark.parametrize("first_fails", [False, True])
async def test_of_two_with_one_event_the_second_waits(
    database: Database, inbox: ConsumerInbox, *, first_fails: bool
) -> None:
    runs, begun, go_on = [], asyncio.Event(), asyncio.Event()

    async def first(connection: Connection, payload: bytes) -> str:
        runs.append("first")
        await add(connection, payload)
        begun.set()
        await go_on.wait()
        if first_fails:
            raise HandlerBroke
        return "first"

    async def second(connection: Connection, payload: bytes) -> str:
        runs.append("second")
        await add(connection, payload)
        return "second"

    one = asyncio.create_task(process(inbox, handler=first))
    await begun.wait()
    twin = ConsumerInbox(database, "projection")
    two = asyncio.create_task(process(twin, handler=second))
    await until(database, IS_WAITING)
    assert runs == ["first"]
    go_on.set()
    answers = await asyncio.gather(one, two, return_exceptions=True)
    if first_fails:
        assert isinstance(answers[0], HandlerBroke)
        assert (answers[1], runs) == ("second", ["first", "second"])
    else:
        assert (answers, runs) == (["first", None], ["first"])
    assert await total(database) == 5


def batch(*ids: str) -> list[InboxEvent]:
    return [InboxEvent(each, TOPIC, "OrderPlaced", b"1") for each in ids]


async def add_all(connection: Connection, events: Sequence[InboxEvent]) -> list[str]:
    for event in events:
        await add(connection, event.payload)
    return [event.event_id for event in events]


@pytest.mark.promise("inbox-once")
async def test_a_batch_is_rolled_back_whole(database: Database, inbox: ConsumerInbox) -> None:
    async def fails_at_the_last(connection: Connection, events: Sequence[InboxEvent]) -> None:
        await add_all(connection, events)
        raise HandlerBroke

    with pytest.raises(HandlerBroke):
        await inbox.process_batch(batch("a", "b"), fails_at_the_last)
    assert (await total(database), await entries(database)) == (0, [])


@pytest.mark.promise("inbox-once")
async def test_batches_in_another_order_do_not_deadlock(database: Database, inbox: ConsumerInbox) -> None:
    ids = [f"e-{number:03}" for number in range(60)]
    answers = await asyncio.gather(
        *(inbox.process_batch(batch(*(ids if number % 2 else reversed(ids))), add_all) for number in range(4))
    )
    assert sum(len(answer or []) for answer in answers) == 60
    assert await total(database) == 60


async def test_a_type_of_any_text_is_no_obstacle(database: Database, inbox: ConsumerInbox) -> None:
    await inbox.process_idempotent("e-1", TOPIC, "a\0b\ud800" + "x" * 10_000, b"5", add)
    kind = await database.pool.fetchval("SELECT event_type FROM consumer_inbox")
    assert kind.startswith("a\ufffdb?xx")


async def test_payloads_need_not_be_kept(database: Database) -> None:
    inbox = ConsumerInbox(database, "projection", keep_payloads=False)
    assert await process(inbox) == 5
    assert await inbox.process_batch(batch("a", "b"), add_all) == ["a", "b"]
    assert await database.pool.fetchval("SELECT count(payload) FROM consumer_inbox") == 0


async def test_a_mark_goes_with_the_callers_transaction(database: Database, inbox: ConsumerInbox) -> None:
    async def mark_and_fail() -> None:
        async with database.transaction() as connection:
            assert await inbox.mark(connection, batch("a")) == batch("a")
            raise HandlerBroke

    with pytest.raises(HandlerBroke):
        await mark_and_fail()
    async with database.transaction() as connection:
        assert await inbox.mark(connection, batch("a")) == batch("a")
    assert await entries(database) == ["a"]


async def age(database: Database, days: float, *ids: str) -> None:
    await database.pool.execute(
        "UPDATE consumer_inbox SET consumed_at = now() - $1 * interval '1 day' WHERE event_id = ANY($2)",
        days,
        ids,
    )


@pytest.mark.promise("inbox-retention")
async def test_old_entries_of_one_consumer_are_forgotten(database: Database, inbox: ConsumerInbox) -> None:
    other = ConsumerInbox(database, "mailer")
    old = [f"o-{number:02}" for number in range(25)]
    await inbox.process_batch(batch(*old, "new"), add_all)
    await other.process_batch(batch("foreign"), add_all)
    await age(database, 8, *old, "foreign")
    assert await inbox.cleanup_old_entries(batch=10) == 25
    assert await entries(database) == ["foreign", "new"]
    assert await inbox.cleanup_old_entries() == 0
    assert await other.cleanup_old_entries(older_than_days=9) == 0


async def test_a_cleanup_passes_by_an_entry_that_is_held(database: Database, inbox: ConsumerInbox) -> None:
    await inbox.process_batch(batch("a", "b"), add_all)
    await age(database, 8, "a", "b")
    async with database.transaction() as connection:
        await connection.execute("SELECT FROM consumer_inbox WHERE event_id = 'a' FOR UPDATE")
        assert await inbox.cleanup_old_entries() == 1
    assert await inbox.cleanup_old_entries() == 1


@pytest.mark.promise("inbox-retention")
async def test_entries_that_a_replay_may_need_are_not_forgotten(database: Database) -> None:
    inbox = ConsumerInbox(database, "projection", duplicates_within=14 * DAY + 370)
    with pytest.raises(SettingsError, match="a replay would be handled twice"):
        await inbox.cleanup_old_entries()
    assert await inbox.cleanup_old_entries(older_than_days=15) == 0


async def test_metrics_count_what_is_committed(database: Database) -> None:
    registry = CollectorRegistry()
    metrics = InboxMetrics(registry)
    inbox = ConsumerInbox(database, "projection", metrics=metrics)
    other = ConsumerInbox(database, "mailer", metrics=metrics)

    with pytest.raises(HandlerBroke):
        await process(inbox, handler=fails)
    for _ in range(3):
        await process(inbox)
    await inbox.process_batch(batch("e-1", "e-2", "e-3"), add_all)
    await process(other)

    def value(name: str, consumer: str = "projection") -> float | None:
        return registry.get_sample_value(name, {"consumer_name": consumer, "event_type": "OrderPlaced"})

    assert value("consumer_inbox_processed_total") == 3
    assert value("consumer_inbox_duplicates_total") == 3
    assert value("consumer_inbox_processing_duration_seconds_count") == 3
    assert value("consumer_inbox_processed_total", "mailer") == 1
    assert value("consumer_inbox_duplicates_total", "mailer") is None
