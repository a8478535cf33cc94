"""Where change data capture begins: at a new slot, with the rows that wait in the table.

It does so at the first start, and where the slot is gone: the server has dropped it at its limit, an operator
has handed the outbox over and back, or the database was restored without it. The place that the connector has
noted means nothing then: from there on the log is not to be had, and rows in between would never be relayed.
"""

from __future__ import annotations

import asyncio

import asyncpg
import structlog

from streams.postgres.cdc.connect import STOPPED, Connect, ConnectorStatus
from streams.postgres.cdc.connector import connector_settings
from streams.postgres.database import Connection
from streams.postgres.errors import ConnectUnavailable
from streams.postgres.replication_slot import drop_slot, slot_lag
from streams.postgres.statements import statements

STOPPED_WITHIN = 30.0
"""Seconds for the connector to let go of the log."""

_POLL = 0.1
_SQL = statements("cdc/cdc.sql")
log = structlog.get_logger()


async def begin_again(connection: Connection, connect: Connect) -> None:
    """Have the connector start with the rows that are not marked as published, then follow a new slot.

    Rows that it had relayed and nobody had marked come again, with the same id. When another relay is at it,
    this does nothing.

    Raises ConnectUnavailable: call it again.
    """
    if not await connection.fetchval(_SQL["lock"]):
        return
    try:
        slot = await slot_lag(connection)
        if slot is not None and not slot.is_lost:
            return
        log.warning("cdc_begins_again", slot="lost" if slot is not None else "missing")
        # A task that waits for a slot which is lost stops when that one is gone; it may make another before.
        await _drop_slot(connection)
        await connect.create_stopped(connector_settings())
        await _until_stopped(connect)
        await connect.forget_offsets()
        await _drop_slot(connection)
        await connection.execute(_SQL["begun"])
        # It makes the slot itself, and reads the table as of the slot's first place.
        await connect.resume()
    finally:
        if not connection.is_closed():
            await connection.execute(_SQL["unlock"])


async def _drop_slot(connection: Connection) -> None:
    try:
        await drop_slot(connection)
    except asyncpg.ObjectInUseError as error:
        raise ConnectUnavailable(f"the connector has not let go of the slot yet: {error}") from error


async def _until_stopped(connect: Connect) -> None:
    try:
        async with asyncio.timeout(STOPPED_WITHIN):
            while not _has_stopped(await connect.status()):  # noqa: ASYNC110 - Connect sends no event
                await asyncio.sleep(_POLL)
    except TimeoutError:
        raise ConnectUnavailable(
            f"Kafka Connect has not stopped the connector within {STOPPED_WITHIN:.0f} s"
        ) from None


def _has_stopped(status: ConnectorStatus | None) -> bool:
    return status is not None and status.state == STOPPED and not status.tasks
