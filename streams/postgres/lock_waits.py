"""Who holds the lock that a session waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from streams.postgres.database import REFUSING, UNAVAILABLE, connect
from streams.postgres.errors import DatabaseUnavailable

_PATIENCE = 2.0
_BLOCKING = """
SELECT pid, coalesce(nullif(application_name, ''), 'no name') AS program, coalesce(usename, '?') AS role,
       coalesce(state, 'prepared') AS state,
       coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0)::int AS seconds
FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids($1)) ORDER BY xact_start
"""


@asynccontextmanager
async def lock_wait_told(
    url: str, pid: int, tell: Callable[[str], None], *, after: float
) -> AsyncIterator[None]:
    """Tell who holds the lock, in words, when what is done in the block by the session `pid` waits for one
    after so many seconds.
    """
    looks: list[asyncio.Task[None]] = []
    timer = asyncio.get_running_loop().call_later(
        after, lambda: looks.append(asyncio.create_task(_look(url, pid, tell)))
    )
    try:
        yield
    finally:
        timer.cancel()
        for look in looks:
            look.cancel()
            await asyncio.wait([look])


async def _look(url: str, pid: int, tell: Callable[[str], None]) -> None:
    try:
        connection = await connect(url, name="steadfaust lock look", timeout=_PATIENCE, bound=_PATIENCE)
    except DatabaseUnavailable:
        return  # the waiting statement meets the same error, and reports it
    try:
        while True:
            if rows := await connection.fetch(_BLOCKING, pid):
                tell("; ".join(_holder(dict(row)) for row in rows))
            await asyncio.sleep(_PATIENCE)
    except (DatabaseUnavailable, *UNAVAILABLE, *REFUSING):
        return
    finally:
        connection.terminate()


def _holder(row: dict[str, object]) -> str:
    return (
        f"a lock held by pid {row['pid']} ({row['program']}, role {row['role']}, {row['state']},"
        f" its transaction is {row['seconds']} s old)"
    )
