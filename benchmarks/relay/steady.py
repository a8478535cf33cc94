"""How soon after its commit a message is on Kafka, at a steady rate."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.latency import Follower, Latency, Schedule, latency_of
from benchmarks.relay.ground import AGGREGATES, Noted, outbox_of_benchmarks, relaying, until
from streams.local import Stack
from streams.ports import Record
from streams.postgres.database import connect

RATE = 500.0


class _Seen(Follower):
    """When each message was read first, by its id."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, [Noted.TOPIC])
        self.at: dict[str, float] = {}

    def take(self, record: Record, now: float) -> None:
        """As the base says."""
        self.at.setdefault(dict(record.headers)["ce_id"].decode(), now)


async def steady(
    stack: Stack, var: Path, messages: int, *, kind: str = "poll", emptied: bool = True
) -> Latency:
    """From the commit of each to a reader. Raises NotMeasured."""
    connection = await connect(stack.url("postgres"))
    outbox, run = outbox_of_benchmarks(), time.monotonic_ns()
    committed: dict[str, float] = {}
    try:
        if emptied:
            await connection.execute("TRUNCATE outbox")
        with relaying(stack, var, kind=kind):
            async with _Seen(stack.bootstrap) as seen:
                async with outbox.transaction(connection) as tx:
                    tx.publish(Noted(order="first", number=0), f"{run}-first")
                await until(lambda: f"{run}-first" in seen.at, "the relay has not begun")
                schedule = Schedule(time.monotonic(), RATE)
                async for number, _ in schedule.moments(messages):
                    message_id = f"{run}-{number}"
                    async with outbox.transaction(connection) as tx:
                        tx.publish(Noted(order=f"o-{number % AGGREGATES}", number=number), message_id)
                    committed[message_id] = time.monotonic()
                await until(lambda: committed.keys() <= seen.at.keys(), "messages have not come out")
                return latency_of(committed, seen.at)
    finally:
        await connection.close()
