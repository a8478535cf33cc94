"""What all measurements of the relay stand on: a stack, an outbox to fill, and the relay as it is started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.kafka import create
from benchmarks.peers.workload import PARTITIONS
from benchmarks.sections import NotMeasured
from streams.kafka.topics import KafkaTopics
from streams.local import Stack
from streams.model.codecs import Schemas, avro
from streams.model.layout import Layout
from streams.model.message import Message
from streams.model.schema_versions import nothing_frozen
from streams.ports import TopicSpec
from streams.postgres import Connection, Outbox, migrate
from streams.postgres.database import connect

AGGREGATES = 5000
BOUND = 900.0
PAUSE = 0.02
_CHUNK = 10_000
_COPIED = "aggregate_type, aggregate_id, event_type, ce_source, ce_time, ce_correlationid, schema_fingerprint"


class Noted(Message, frozen=True, kw_only=True):
    """An event of 200 bytes, unless its note is a longer one."""

    TOPIC = "bench.order.noted.v1"
    order: str
    number: int
    note: str = "n" * 160

    @property
    def key(self) -> str:
        """The order."""
        return self.order


def outbox_of_benchmarks() -> Outbox:
    """Its messages are those above."""
    return Outbox(avro(nothing_frozen, Schemas()), source="bench")


async def prepare(stack: Stack) -> None:
    """Make topics and tables."""
    announcements = Layout("relay", PARTITIONS, 1).announcements
    async with KafkaTopics(stack.bootstrap) as topics:
        await topics.create([TopicSpec(Noted.TOPIC, PARTITIONS, 1), TopicSpec(announcements, 1, 1)])
    connection = await connect(stack.url("postgres"))
    try:
        await migrate(connection)
    finally:
        await connection.close()


async def seed(connection: Connection, aggregates: int = AGGREGATES, *, note: str = "") -> None:
    """Leave one row for each aggregate in an outbox that was emptied; copies are made of them."""
    await connection.execute("TRUNCATE outbox")
    async with outbox_of_benchmarks().transaction(connection) as tx:
        for number in range(aggregates):
            order = f"o-{number}"
            tx.publish(Noted(order=order, number=0, note=note) if note else Noted(order=order, number=0))


async def copy(connection: Connection, topic: str, rows: int, *, one_waits_of: int = 1) -> None:
    """Fill the outbox, chunk by chunk, with copies of the seeds that are for another topic.

    One of so many waits, spread over all; the others have been published.
    """
    await connection.execute(
        f"CREATE TEMP TABLE seeds AS SELECT row_number() OVER () AS i, payload, {_COPIED} FROM outbox"
    )
    # Not a multiple of `one_waits_of`: those that wait are of all aggregates.
    aggregates = await connection.fetchval("SELECT count(*) FROM seeds") - 1
    await connection.execute("TRUNCATE outbox")
    for first in range(0, rows, _CHUNK):
        await connection.execute(
            f"INSERT INTO outbox (id, topic, published_at, payload, {_COPIED})"
            " SELECT n || '-' || aggregate_id, $1, CASE WHEN n % $4 = 0 THEN NULL ELSE now() END,"
            f" payload, {_COPIED} FROM seeds"
            " JOIN generate_series($2::bigint, $3::bigint) AS n ON n % $5 + 1 = i",
            topic,
            first,
            min(first + _CHUNK, rows) - 1,
            one_waits_of,
            aggregates,
        )
    await connection.execute("DROP TABLE seeds")


async def new_topic(stack: Stack) -> str:
    """A new topic."""
    topic = f"bench.burst-{time.monotonic_ns()}.v1"
    await create(stack.bootstrap, topic)
    return topic


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for it. Raises NotMeasured."""
    deadline = time.monotonic() + BOUND
    while not condition():
        if time.monotonic() > deadline:
            raise NotMeasured(what)
        await asyncio.sleep(PAUSE)


@contextmanager
def relaying(stack: Stack, var: Path, after: str = "mark", *, kind: str = "poll") -> Iterator[psutil.Process]:
    """A relay for the time of the block, as `steadfaust outbox relay` starts it."""
    environment = {
        **os.environ,
        "STEADFAUST_APP_ID": "relay",
        "STEADFAUST_POSTGRES_URL": stack.url("postgres"),
        "STEADFAUST_BOOTSTRAP": stack.bootstrap,
        "STEADFAUST_PARTITIONS": str(PARTITIONS),
        "STEADFAUST_LANES": "1",
        "STEADFAUST_OUTBOX": kind,
        "STEADFAUST_OUTBOX_AFTER": after,
    }
    if kind == "cdc":
        environment["STEADFAUST_CONNECT_URL"] = stack.url("connect")
    command = [str(Path(sys.executable).with_name("steadfaust")), "outbox", "relay", "--port", "0"]
    with (var / "relay.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)
