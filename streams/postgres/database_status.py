"""How a database's outbox, queues and inboxes stand, for the web view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TypeVar

import asyncpg

from streams.brokers import READ
from streams.control.base.database_answers import (
    DatabaseAnswer,
    InboxAnswer,
    OutboxAnswer,
    OutboxRowAnswer,
    OutboxRows,
    QueueAnswer,
    WaitingRow,
)
from streams.model.envelope import rfc3339
from streams.postgres.advice import advice
from streams.postgres.database import REFUSING, UNAVAILABLE, Connection, connect
from streams.postgres.errors import DatabaseUnavailable
from streams.postgres.inbox.consumer_status import consumers, size, transactional_inboxes
from streams.postgres.outbox import operations
from streams.postgres.outbox_owner import outbox_owner
from streams.postgres.queue.operations import queue_standings
from streams.postgres.replication_slot import slot_lag
from streams.units import MIB

T = TypeVar("T")

#: Seconds until the database has let us in, and for one answer of it; and for all of a page, within a read.
PATIENCE, FOR_ALL = 2.0, 0.9 * READ
_SHOWN = 20


async def database_answer(url: str) -> DatabaseAnswer:
    """State of a database's outbox, queues and inboxes; parts without tables are left out."""
    try:
        async with asyncio.timeout(FOR_ALL):
            return await _answer(url)
    except TimeoutError:
        return DatabaseAnswer(missing=f"PostgreSQL did not answer within {FOR_ALL:g} s", silent=True)


async def _answer(url: str) -> DatabaseAnswer:
    try:
        connection = await connect(url, name="steadfaust pages", timeout=PATIENCE, bound=PATIENCE)
    except DatabaseUnavailable as error:
        return DatabaseAnswer(missing=str(error), silent=True)
    try:
        return DatabaseAnswer(
            outbox=await _if_there(_outbox, connection),
            queues=await _if_there(_queues, connection) or [],
            inbox=await _if_there(_inbox, connection),
        )
    except (*UNAVAILABLE, *REFUSING, asyncpg.QueryCanceledError) as error:
        why = f"PostgreSQL did not answer: {error or type(error).__name__}"
        return DatabaseAnswer(missing=why, silent=True)
    except asyncpg.PostgresError as error:  # such as a right that the role has not
        return DatabaseAnswer(missing=f"PostgreSQL refused: {error}{advice(error)}", silent=True)
    finally:
        connection.terminate()  # nothing is under way, and a silent network would have a farewell wait


async def outbox_rows(url: str, published: Mapping[str, float]) -> OutboxRows:
    """The rows of messages' ids in the outbox, each with the time of its record, in epoch seconds."""
    try:
        connection = await connect(url, name="steadfaust pages", timeout=PATIENCE, bound=PATIENCE)
    except DatabaseUnavailable as error:
        return OutboxRows(missing=str(error))
    try:
        rows = await _if_there(partial(operations.rows_of, published=published), connection) or []
    except (*UNAVAILABLE, *REFUSING, asyncpg.QueryCanceledError) as error:
        return OutboxRows(missing=f"PostgreSQL did not answer: {error or type(error).__name__}")
    except asyncpg.PostgresError as error:
        return OutboxRows(missing=f"PostgreSQL refused: {error}{advice(error)}")
    finally:
        connection.terminate()
    return OutboxRows(
        rows=[
            OutboxRowAnswer(
                id=row["id"],
                topic=row["topic"],
                aggregate=f"{row['aggregate_type']} {row['aggregate_id']}",
                written=_time(row["created_at"]),
                published=_time(row["published_at"]),
                attempts=row["attempts"],
                error=row["last_error"] or "",
                retry_at=_time(row["retry_at"]),
            )
            for row in rows
        ]
    )


async def _if_there(look: Callable[[Connection], Awaitable[T]], connection: Connection) -> T | None:
    try:
        return await look(connection)
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError):
        return None


async def _outbox(connection: Connection) -> OutboxAnswer:
    status, slot = await operations.status(connection), await slot_lag(connection)
    rows = await operations.listed(connection, "failed", limit=_SHOWN)
    known = {row["position"] for row in rows}
    rows += [row for row in await operations.listed(connection, limit=_SHOWN) if row["position"] not in known]
    owner = await outbox_owner(connection)
    kept = ""
    if slot is not None:
        kept = f"{slot.status}, {slot.behind / MIB:.1f} MiB behind, keeps {slot.retained / MIB:.1f} MiB"
    return OutboxAnswer(
        relay=str(owner) if owner is not None else "",
        unpublished=status.unpublished,
        failed=status.failed,
        oldest_seconds=round(status.oldest_seconds, 1),
        table_bytes=status.table_bytes,
        slot=kept,
        slot_warning=slot.warning if slot else "",
        waiting=[
            WaitingRow(
                id=row["id"],
                topic=row["topic"],
                aggregate=f"{row['aggregate_type']} {row['aggregate_id']}",
                created_at=_time(row["created_at"]),
                attempts=row["attempts"],
                error=row["last_error"] or "",
                retry_at=_time(row["retry_at"]),
            )
            for row in rows[:_SHOWN]
        ],
    )


async def _queues(connection: Connection) -> list[QueueAnswer]:
    return [
        QueueAnswer(queue=each.queue, jobs=dict(each.jobs), oldest_ready=round(each.oldest_ready, 1))
        for each in await queue_standings(connection)
    ]


async def _inbox(connection: Connection) -> InboxAnswer:
    found = await size(connection)
    return InboxAnswer(
        consumers=await consumers(connection),
        stored=await transactional_inboxes(connection),
        bytes=found.table_bytes + found.index_bytes,
    )


def _time(at: datetime | None) -> str:
    return rfc3339(at.timestamp()) if at is not None else ""
