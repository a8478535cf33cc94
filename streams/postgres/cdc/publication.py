"""The publication: what change data capture passes on. Polling relays need none, so no migration makes it."""

from __future__ import annotations

import asyncpg

from streams.postgres.advice import advice
from streams.postgres.database import Connection
from streams.postgres.errors import StatementRefused
from streams.postgres.replication_slot import PUBLICATION
from streams.postgres.statements import statements

_SQL = statements("cdc/cdc.sql")


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
            f"{advice(error, role)}. Or have somebody who may run: {' '.join(statement.split())}"
        ) from error
