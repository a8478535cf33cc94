"""A connection for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streams.postgres import Connection, Database


@asynccontextmanager
async def session(database: Database, seconds: float) -> AsyncIterator[Connection]:
    """A connection of the pool, which is cut when it was held for so many seconds: a server that has frozen
    answers neither a statement nor its cancellation.

    Raises DatabaseUnavailable when none is free, and when the connection is lost or cut.
    """
    async with database.acquire() as connection:
        cut = asyncio.get_running_loop().call_later(seconds, connection.terminate)
        try:
            yield connection
        finally:
            cut.cancel()
