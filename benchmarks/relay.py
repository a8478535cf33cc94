"""What the relay does: rows a second out of a full outbox, and how soon after a commit a message is on Kafka.

One relay, a process of its own as `steadfaust outbox relay` starts it, on one PostgreSQL and one broker.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from benchmarks.follower import Follower
from benchmarks.latency import Latency, Schedule, latency_of
from benchmarks.sections import Context, NotMeasured, Section, Table
from streams.local import Stack, local_stack
from streams.model.codecs import Schemas, avro
from streams.model.layout import Layout
from streams.model.message import Message
from streams.model.schema_versions import nothing_frozen
from streams.ports import Record
from streams.postgres import Connection, Outbox, migrate
from streams.postgres.database import connect
from streams.runtime.declared import TopicSpec
from streams.runtime.topics import KafkaTopics

SECTION = "relay"

PARTITIONS = 8
AGGREGATES = 5000
#: Of a payload, in bytes, beside its key and number.
NOTE = "n" * 160
RATE = 500.0
AFTER = ("mark", "delete")
_DONE = {"mark": "marked", "delete": "deleted"}
_COPIED = (
    "aggregate_type, aggregate_id, event_type, topic, payload, ce_source, ce_time, ce_correlationid,"
    " schema_fingerprint"
)
BOUND = 600.0
PAUSE = 0.02


class Noted(Message, frozen=True, kw_only=True):
    """An event of 200 bytes."""

    TOPIC = "bench.order.noted.v1"
    order: str
    number: int
    note: str = NOTE

    @property
    def key(self) -> str:
        """The order."""
        return self.order


class Burst(NamedTuple):
    """Of a full outbox: rows a second, and the relay's largest resident memory in MB."""

    rate: float
    megabytes: float


def measure(context: Context) -> Section:
    """Bursts in every form of marking, in turns, then messages at a steady rate."""
    rows = 40_000 if context.quick else 200_000
    messages = int(RATE * (5 if context.quick else 30))
    bursts: dict[str, list[Burst]] = {after: [] for after in AFTER}
    latencies: list[Latency] = []
    with local_stack(context.var / "stack", databases=["relay"], say=context.say) as stack:
        asyncio.run(_prepare(stack))
        for run in range(context.runs):
            for after in AFTER:
                bursts[after].append(asyncio.run(_burst(stack, context.var, rows, after)))
                context.say(f"run {run + 1}: {after}, {bursts[after][-1].rate:,.0f} rows/s")
            latencies.append(asyncio.run(_steady(stack, context.var, messages)))
            context.say(f"run {run + 1}: p99 {latencies[-1].p99 * 1000:.1f} ms at {RATE:g} rows/s")
    return _section(bursts, latencies, rows)


def _section(bursts: dict[str, list[Burst]], latencies: list[Latency], rows: int) -> Section:
    rates = {after: median(each.rate for each in found) for after, found in bursts.items()}
    most = {after: max(each.megabytes for each in found) for after, found in bursts.items()}
    p50, p99 = (median(getattr(each, name) for each in latencies) * 1000 for name in ("p50", "p99"))
    return Section(
        "Outbox relay",
        [
            Table(
                f"{rows:,} rows of 200 bytes that wait, one relay",
                ("a published row is", "rows/s", "most MB"),
                [(_DONE[after], f"{rates[after]:,.0f}", f"{most[after]:.0f}") for after in AFTER],
            ),
            Table(
                f"From the commit to a reader of the topic, at {RATE:g} rows/s",
                ("", "p50 ms", "p99 ms"),
                [("one relay", f"{p50:.1f}", f"{p99:.1f}")],
            ),
        ],
        {SECTION: {"rows_per_second": rates, "megabytes": most, "p50_ms": p50, "p99_ms": p99}},
        [
            "Every row was checked to be marked or gone, and every message of the steady rate to have come.",
            "PostgreSQL, the broker, the relay, its writer and its reader share the machine.",
        ],
    )


async def _prepare(stack: Stack) -> None:
    announcements = Layout("relay", PARTITIONS, 1).announcements
    async with KafkaTopics(stack.bootstrap) as topics:
        await topics.create([TopicSpec(Noted.TOPIC, PARTITIONS, 1), TopicSpec(announcements, 1, 1)])
    connection = await connect(stack.url("postgres"))
    try:
        await migrate(connection)
    finally:
        await connection.close()


def _outbox() -> Outbox:
    return Outbox(avro(nothing_frozen, Schemas()), source="bench")


async def _burst(stack: Stack, var: Path, rows: int, after: str) -> Burst:
    connection = await connect(stack.url("postgres"))
    try:
        await _fill(connection, rows)
        with _relay(stack, var, after) as relay:
            most, first = 0.0, (0.0, 0)
            started = time.monotonic()
            while left := await _waiting(connection):
                if not first[1] and left < rows:  # it has started: its first batches are not counted
                    first = time.monotonic(), left
                most = max(most, relay.memory_info().rss / 1e6)
                if time.monotonic() - started > BOUND or not relay.is_running():
                    raise NotMeasured(f"{left} of {rows} rows still wait: see {var / 'relay.log'}")
                await asyncio.sleep(PAUSE)
            seconds = time.monotonic() - first[0]
        if not first[1]:
            raise NotMeasured("all rows were gone at the first look: measure more of them")
        return Burst(first[1] / seconds, most)
    finally:
        await connection.close()


async def _fill(connection: Connection, rows: int) -> None:
    """Many copies of rows that were published as always."""
    await connection.execute("TRUNCATE outbox")
    outbox = _outbox()
    async with outbox.transaction(connection) as tx:
        for number in range(AGGREGATES):
            tx.publish(Noted(order=f"o-{number}", number=0))
    await connection.execute(
        f"INSERT INTO outbox (id, {_COPIED}) SELECT id || '-' || n, {_COPIED}"
        " FROM outbox CROSS JOIN generate_series(2, $1) AS n",
        rows // AGGREGATES,
    )
    await connection.execute("VACUUM ANALYZE outbox")


async def _waiting(connection: Connection) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM outbox WHERE published_at IS NULL"))


class _Seen(Follower):
    """When each message was read first, by its id."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, [Noted.TOPIC])
        self.at: dict[str, float] = {}

    def take(self, record: Record, now: float) -> None:
        """As the base says."""
        self.at.setdefault(dict(record.headers)["ce_id"].decode(), now)


async def _steady(stack: Stack, var: Path, messages: int) -> Latency:
    connection = await connect(stack.url("postgres"))
    outbox, run = _outbox(), time.monotonic_ns()
    committed: dict[str, float] = {}
    try:
        await connection.execute("TRUNCATE outbox")
        with _relay(stack, var, "mark"):
            async with _Seen(stack.bootstrap) as seen:
                async with outbox.transaction(connection) as tx:
                    tx.publish(Noted(order="first", number=0), f"{run}-first")
                await _until(lambda: f"{run}-first" in seen.at)
                schedule = Schedule(time.monotonic(), RATE)
                async for number, _ in schedule.moments(messages):
                    message_id = f"{run}-{number}"
                    async with outbox.transaction(connection) as tx:
                        tx.publish(Noted(order=f"o-{number % AGGREGATES}", number=number), message_id)
                    committed[message_id] = time.monotonic()
                await _until(lambda: committed.keys() <= seen.at.keys())
                return latency_of(committed, seen.at)
    finally:
        await connection.close()


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND
    while not condition():
        if time.monotonic() > deadline:
            raise NotMeasured("messages have not come out of the relay")
        await asyncio.sleep(PAUSE)


@contextmanager
def _relay(stack: Stack, var: Path, after: str) -> Iterator[psutil.Process]:
    """A relay for the time of the block."""
    environment = {
        **os.environ,
        "STEADFAUST_APP_ID": "relay",
        "STEADFAUST_POSTGRES_URL": stack.url("postgres"),
        "STEADFAUST_BOOTSTRAP": stack.bootstrap,
        "STEADFAUST_PARTITIONS": str(PARTITIONS),
        "STEADFAUST_LANES": "1",
        "STEADFAUST_OUTBOX_AFTER": after,
    }
    command = [str(Path(sys.executable).with_name("steadfaust")), "outbox", "relay", "--port", "0"]
    with (var / "relay.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)
