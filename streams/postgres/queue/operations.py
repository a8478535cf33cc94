"""States of queues, and operations on their jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from streams.postgres.database import Connection
from streams.postgres.queue.job import headers_of
from streams.postgres.queue.queue import SQL

#: What may be listed by itself.
STATES = ("ready", "waiting", "held", "failed")


class QueueState(NamedTuple):
    """How many jobs of a queue are in a state, and when the oldest was enqueued."""

    queue: str
    state: str
    jobs: int
    oldest: datetime


async def queue_states(connection: Connection, queue: str = "") -> list[QueueState]:
    """Each queue's jobs by their state; `under way` are those that a worker has."""
    return [QueueState(*row.values()) for row in await connection.fetch(SQL["queues"], queue or None)]


class QueueStatus(NamedTuple):
    """State of a queue.

    Attributes:
        jobs: by state, each counted up to 100,000; `under_way` are those that a worker has.
        oldest_ready: seconds that the oldest job which may be taken has waited for a worker.
    """

    queue: str
    jobs: Mapping[str, int]
    oldest_ready: float


async def queue_standings(connection: Connection) -> list[QueueStatus]:
    """Each queue that has jobs or workers; what this costs does not grow with the jobs."""
    rows = await connection.fetch(SQL["standings"])
    return [
        QueueStatus(
            row["queue"],
            {
                "ready": max(0, row["ready"] - row["under_way"]),
                "under_way": row["under_way"],
                "waiting": row["waiting"],
                "held": row["held"],
                "failed": row["failed"],
            },
            row["oldest_ready"],
        )
        for row in rows
    ]


async def list_jobs(
    connection: Connection, queue: str, *, state: str = "", key: str = "", after: int = 0, limit: int = 50
) -> list[dict[str, Any]]:
    """Jobs in the order of their numbers, without payloads; the next page is `after` the last one."""
    rows = await connection.fetch(SQL["list"], queue, state or None, key or None, after, limit)
    return [{name: value for name, value in row.items() if name != "payload"} for row in rows]


async def show_job(connection: Connection, number: int) -> dict[str, Any] | None:
    """All of one job; None when it is not there, or not any more."""
    row = await connection.fetchrow(SQL["show"], number)
    if row is None:
        return None
    headers = [(name, value.decode("utf-8", "replace")) for name, value in headers_of(row["headers"])]
    return {**row, "headers": headers, "payload": row["payload"].hex()}


async def retry_jobs(connection: Connection, queue: str, numbers: Sequence[int]) -> list[int]:
    """Have failed or waiting jobs tried now, from the first try on; returns those that are."""
    return await _change_jobs(connection, "retry", queue, numbers)


async def discard_jobs(connection: Connection, queue: str, numbers: Sequence[int]) -> list[int]:
    """Give jobs up for good: those behind them go on. Returns which; not those that a worker has."""
    return await _change_jobs(connection, "discard", queue, numbers)


async def _change_jobs(connection: Connection, change: str, queue: str, numbers: Sequence[int]) -> list[int]:
    """Change jobs by a statement, and wake the queue's workers. Returns the jobs that were changed."""
    async with connection.transaction():
        found: list[int] = await connection.fetchval(SQL[change], queue, list(numbers))
        await connection.execute(SQL["wake"], queue)
    return found
