"""Dead rows and size of the outbox under load, with PostgreSQL's own settings of autovacuum, and with those
of the library: `python -m benchmarks.outbox_vacuum` prints the table of docs/outbox.md.

The table has published rows already. A writer commits so many rows, at 1,000 a second at most, and a relay
marks or deletes them; what is published goes nowhere. The server looks for work every 5 s, twelve times as
often as by default, so that a run of a minute shows what takes longer otherwise.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from streams.local import local_stack
from streams.model.codecs import Schemas, avro
from streams.model.message import Message
from streams.model.schema_versions import nothing_frozen
from streams.postgres import Connection, Database, Outbox, migrate
from streams.postgres.relay import After, Relay, RelayOptions
from streams.testing import MemoryPublisher

KEPT = 200_000
ROWS = 60_000
_RATE = 1_000
_BATCH = 100
_NAPTIME = 5
_SAMPLE = 0.5

_WAITS = "SELECT EXISTS (SELECT FROM outbox WHERE published_at IS NULL)"
_DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'outbox'"
DEFAULT = (
    "ALTER TABLE outbox RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,"
    " autovacuum_vacuum_insert_scale_factor)"
)


class Case(NamedTuple):
    """A run: its name, what a relay does with published rows, and the change to the table."""

    name: str
    after: After
    statement: str


CASES = (
    Case("PostgreSQL's defaults", After.MARK, DEFAULT),
    Case("the library's", After.MARK, "SELECT"),
    Case("PostgreSQL's defaults", After.DELETE, DEFAULT),
    Case("the library's", After.DELETE, "SELECT"),
)


class Packed(Message, frozen=True, kw_only=True):
    """What is published."""

    TOPIC = "bench.parcel.packed.v1"
    parcel: str
    note: str = "n" * 200

    @property
    def key(self) -> str:
        """The parcel."""
        return self.parcel


class VacuumResult(NamedTuple):
    """What a run showed."""

    most_dead: int
    vacuums: int
    grown: int


async def run(url: str, case: Case) -> VacuumResult:
    """Fill, then load the outbox; the database is new."""
    async with Database(url, most=4) as database, database.acquire() as connection:
        await migrate(connection)
        await connection.execute(case.statement)
        outbox = Outbox(avro(nothing_frozen, Schemas()), source="bench")
        if case.after is After.MARK:
            await fill(connection)
        before = await connection.fetchval("SELECT pg_total_relation_size('outbox')")
        publisher = MemoryPublisher()
        relay = Relay(url, publisher, RelayOptions(after=case.after))
        running = asyncio.create_task(relay.run())
        dead = await load(database, connection, outbox, publisher)
        relay.stop()
        await running
        row = await connection.fetchrow(
            "SELECT autovacuum_count, pg_total_relation_size('outbox') AS bytes FROM pg_stat_user_tables"
            " WHERE relname = 'outbox'"
        )
        assert row is not None
        return VacuumResult(dead, row["autovacuum_count"], row["bytes"] - before)


async def fill(connection: Connection) -> None:
    """Rows that were published."""
    await connection.execute(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, topic, payload, ce_source,"
        " ce_time, ce_correlationid, schema_fingerprint, published_at)"
        " SELECT 'k' || n, 'parcel', 'p' || n, $1, $1, convert_to(repeat('n', 200), 'UTF8'), 'bench', '', '',"
        " '', now() FROM generate_series(1, $2::int) AS n",
        Packed.TOPIC,
        KEPT,
    )
    await connection.execute("VACUUM ANALYZE outbox")


async def load(database: Database, connection: Connection, outbox: Outbox, publisher: MemoryPublisher) -> int:
    """Write the rows, and wait until they are published; the most dead rows that the server has counted."""
    dead, begun, sampled = 0, time.monotonic(), 0.0
    number = 0
    while number < ROWS or await connection.fetchval(_WAITS):
        now = time.monotonic() - begun
        if number < min(ROWS, now * _RATE):
            async with database.acquire() as writer, outbox.transaction(writer) as tx:
                for each in range(number, number + _BATCH):
                    tx.publish(Packed(parcel=f"p-{each % 5000}"), f"m-{each}")
            number += _BATCH
        else:
            await asyncio.sleep(0.02)
        if now - sampled >= _SAMPLE:
            sampled = now
            publisher.written.clear()
            dead = max(dead, await connection.fetchval(_DEAD))
    return dead


async def main() -> None:
    """Run all cases, each in a database of its own, and print a table."""
    say = sys.stdout.write
    names = [f"vacuum_{number}" for number in range(len(CASES))]
    with (
        tempfile.TemporaryDirectory() as directory,
        local_stack(Path(directory), brokers=0, databases=names) as stack,
    ):
        first = stack.url("postgres")
        async with Database(first) as database:
            await database.pool.execute(f"ALTER SYSTEM SET autovacuum_naptime = '{_NAPTIME}s'")
            await database.pool.execute("SELECT pg_reload_conf()")
        say("| Published rows | Settings | Most dead rows | Autovacuums | Grown by |\n")
        say("|---|---|---|---|---|\n")
        for name, case in zip(names, CASES, strict=True):
            found = await run(first.replace(names[0], name), case)
            say(
                f"| {case.after} | {case.name} | {found.most_dead:,} | {found.vacuums} |"
                f" {found.grown / 1e6:.0f} MB |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
