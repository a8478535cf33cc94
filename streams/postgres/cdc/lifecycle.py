"""Begin and end change data capture, and make its publication.

It begins at a new slot, with the rows that wait in the table: at the first start, and when the slot is gone
because the server dropped it at its limit, an operator handed the outbox over and back, or the database was
restored without it. The connector's offset is useless then: the log from there on is gone, and the rows in
between would never be relayed. Only change data capture needs a publication, so no migration makes it.
"""

from __future__ import annotations

import asyncio

import asyncpg

from streams.postgres.advice import advice
from streams.postgres.cdc.connect import STOPPED, Connect, ConnectorStatus
from streams.postgres.cdc.connector import connector_settings
from streams.postgres.database import Connection
from streams.postgres.errors import ConnectUnavailable, OutboxOwned, StatementRefused
from streams.postgres.outbox_owner import RelayKind, hand_over
from streams.postgres.replication_slot import PUBLICATION, drop_slot, slot_lag
from streams.postgres.statements import statements

STOPPED_WITHIN = 30.0
"""Seconds for the connector to let go of the log."""

_POLL = 0.1
_SQL = statements("cdc/cdc.sql")


async def begin_again(connection: Connection, connect: Connect) -> None:
    """Have the connector start with the rows that are not marked as published, then follow a new slot.

    Rows that it had relayed and that were not marked come again, with the same id. When another relay is at
    it, this does nothing.

    Raises ConnectUnavailable: call it again.
    """
    if not await connection.fetchval(_SQL["lock"]):
        return
    try:
        slot = await slot_lag(connection)
        if slot is not None and not slot.is_lost:
            return
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


ENDED_WITHIN = 60.0
"""Seconds for the connector to let go of the log."""

_LOOK = 1.0
"""Between two looks: longer than a step of the relay, which may have made the connector again meanwhile."""


async def end(connection: Connection, connect: Connect) -> None:
    """Remove the connector and its slot, and give the outbox to polling relays.

    A connector that was removed still reads for a moment, and a relay that looks after it makes it again
    until it sees whose the outbox is. So this is done until it lasts.

    Raises ConnectUnavailable: call it again.
    """
    problem = ""
    try:
        async with asyncio.timeout(ENDED_WITHIN):
            while True:
                try:
                    await connect.remove()
                    await hand_over(connection, RelayKind.POLL)
                    await asyncio.sleep(_LOOK)
                    if await connect.status() is None and await slot_lag(connection) is None:
                        return
                except (ConnectUnavailable, OutboxOwned) as error:
                    problem = str(error)
                    await asyncio.sleep(_LOOK)
    except TimeoutError:
        raise ConnectUnavailable(
            f"the connector does not end within {ENDED_WITHIN:.0f} s: {problem or 'it is made again'}"
        ) from None


async def ensure_publication(connection: Connection) -> None:
    """Make it, unless it is there: new rows of the outbox and of heartbeats, and nothing else.

    Raises StatementRefused, with what to do, when the role may not.
    """
    if await connection.fetchval(_SQL["has_publication"], PUBLICATION):
        return
    statement = _SQL["publish"].replace("$1", PUBLICATION)
    try:
        await connection.execute(statement)
    except (asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
        return  # another relay was faster
    except asyncpg.InsufficientPrivilegeError as error:
        role = await connection.fetchval("SELECT current_user")
        raise StatementRefused(
            f"there is no publication {PUBLICATION}, and role {role} may not make it: {error}"
            f"{advice(error, role)}. Or have a role that may run it: {' '.join(statement.split())}"
        ) from error
