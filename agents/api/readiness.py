"""What the orders API needs of its database, for `/health`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from streams.postgres import LIBRARY, Connection, Database, MigrationSet
from streams.postgres.errors import DatabaseUnavailable
from streams.postgres.migrations import why_unready

MIGRATIONS = MigrationSet("orders", Path(__file__).parent / "migrations")

#: What each table is asked for by a request.
_RIGHTS = {
    "orders": "SELECT, INSERT, UPDATE",
    "idempotency_keys": "SELECT, INSERT, UPDATE",
    "outbox": "INSERT",
    "outbox_schemas": "SELECT, INSERT",
}
_MISSING = """
SELECT given.name, trim(given.needed) AS needed, current_user AS role
FROM unnest($1::text[], $2::text[]) AS given (name, needed)
WHERE NOT has_table_privilege(given.name, trim(given.needed))
ORDER BY 1, 2
"""


async def unready(database: Database) -> str:
    """Why no request can be served, with what to do; empty: they can. Raises DatabaseUnavailable."""
    async with database.acquire() as connection:
        return await why_unready(connection, [LIBRARY, MIGRATIONS]) or await _missing_right(connection)


async def read_only(database: Database) -> str:
    """Why no order can be taken now, as far as PostgreSQL answers; empty: they can."""
    with suppress(DatabaseUnavailable):  # `unready` tells of it
        async with database.acquire() as connection:
            if await connection.fetchval("SELECT current_setting('transaction_read_only') = 'on'"):
                return "PostgreSQL is read-only, or a standby: orders are shown, and none is taken"
    return ""


async def _missing_right(connection: Connection) -> str:
    asked = [(name, right) for name, rights in _RIGHTS.items() for right in rights.split(",")]
    row = await connection.fetchrow(_MISSING, [name for name, _ in asked], [right for _, right in asked])
    if row is None:
        return ""
    grant = f"GRANT {_RIGHTS[row['name']]} ON TABLE {row['name']} TO {row['role']}"
    return f"{row['role']} has not the right {row['needed']} on {row['name']}: {grant}"
