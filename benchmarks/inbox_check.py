"""How long the inbox takes to know an event: `python -m benchmarks.inbox_check [--rows 10000000]`.

PostgreSQL of the local stack with its usual settings, so that what is new is on the disk before it counts.
The inbox is filled first, by SQL, with ids in the order of time, as those of events are.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Annotated

import typer
import uuid_utils

from streams.local import local_stack
from streams.postgres import Connection, ConsumerInbox, Database, InboxEvent, migrate

_TOPIC = "orders.order.placed.v1"
_FILL = """
INSERT INTO consumer_inbox (
    event_id, consumer_name, source_topic, event_type, payload, processing_duration_ms
)
SELECT 'order-' || to_char(number, 'FM0000000000') || '-placed', 'projection', $3, $3,
       decode(repeat('ab', 100), 'hex'), 1
FROM generate_series($1::bigint, $2::bigint) AS number
"""
_CHUNK = 500_000


async def handle(_connection: Connection, _payload: bytes) -> bool:
    """Nothing: what is measured is the inbox."""
    return True


async def handle_all(_connection: Connection, events: Sequence[InboxEvent]) -> int:
    """Nothing, of a batch."""
    return len(events)


def known(number: int) -> InboxEvent:
    """An event that the inbox has."""
    return InboxEvent(f"order-{number:010}-placed", _TOPIC, _TOPIC, b"\xab" * 100)


def new() -> InboxEvent:
    """An event that it does not have."""
    return InboxEvent(str(uuid_utils.uuid7()), _TOPIC, _TOPIC, b"\xab" * 100)


async def timed(times: int, work: Callable[[], Awaitable[object]]) -> list[float]:
    """Milliseconds of each call, sorted."""
    took = []
    for _ in range(times):
        started = time.perf_counter()
        await work()
        took.append((time.perf_counter() - started) * 1000)
    return sorted(took)


async def measure(url: str, rows: int, times: int, batch: int) -> None:
    """Fill, measure, print."""
    chance = Random(1)  # the same events in each run
    async with Database(url, most=2) as database:
        async with database.acquire() as connection:
            await migrate(connection)
            for start in range(0, rows, _CHUNK):
                await connection.execute(_FILL, start, min(start + _CHUNK, rows) - 1, _TOPIC, timeout=600)
                print(f"filled {min(start + _CHUNK, rows):,} rows", flush=True)
            await connection.execute("VACUUM ANALYZE consumer_inbox", timeout=3600)
        inbox = ConsumerInbox(database, "projection")

        async def one(event: InboxEvent, expected: object) -> None:
            if await inbox.process_idempotent(*event, handle) is not expected:
                raise RuntimeError(f"{event.event_id!r} was taken for what it is not")

        async def many(events: list[InboxEvent], expected: int | None) -> None:
            if await inbox.process_batch(events, handle_all) != expected:
                raise RuntimeError("events of a batch were taken for what they are not")

        async def check(events: list[InboxEvent]) -> None:
            async with database.transaction() as connection:
                await inbox.mark(connection, events)

        def some() -> list[InboxEvent]:
            return [known(chance.randrange(rows)) for _ in range(batch)]

        await timed(times // 10 + 1, lambda: one(known(chance.randrange(rows)), None))  # warm up
        few = max(1, times // batch * 5)
        report("a duplicate, single", await timed(times, lambda: one(known(chance.randrange(rows)), None)), 1)
        report("new, single, committed", await timed(times, lambda: one(new(), True)), 1)
        report(f"duplicates, by {batch}", await timed(few, lambda: many(some(), None)), batch)
        report(f"the insert alone, by {batch}", await timed(few, lambda: check(some())), batch)
        report(
            f"new, by {batch}, committed",
            await timed(few, lambda: many([new() for _ in range(batch)], batch)),
            batch,
        )


def report(what: str, took: list[float], batch: int) -> None:
    """A line: milliseconds for each event, and for the slowest calls."""
    p50, p99 = took[len(took) // 2] / batch, took[int(len(took) * 0.99)] / batch
    print(f"{what:<32} p50 {p50:8.4f} ms  p99 {p99:8.4f} ms for each event, {len(took)} calls", flush=True)


def command(
    rows: Annotated[int, typer.Option(min=1000)] = 10_000_000,
    times: Annotated[int, typer.Option(min=10, help="Single events of each kind.")] = 5000,
    batch: Annotated[int, typer.Option(min=2)] = 100,
) -> None:
    """Measure the check of an event against so many rows."""
    with (
        tempfile.TemporaryDirectory() as home,
        local_stack(Path(home), brokers=0, databases=["bench"]) as stack,
    ):
        asyncio.run(measure(stack.url("postgres"), rows, times, batch))


if __name__ == "__main__":
    typer.run(command)
