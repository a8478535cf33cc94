"""Applies one migration: whole or not at all, and without holding writers up behind a lock of others."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import asyncpg
import structlog

from streams.postgres.advice import advice
from streams.postgres.database import PASSING, Connection
from streams.postgres.errors import MigrationError
from streams.postgres.lock_waits import lock_wait_told

log = structlog.get_logger(__name__)

#: Seconds that a statement waits for its lock: writers of the table wait behind it for as long.
LOCK_WAIT = 2.0
#: Seconds until it is given up, from the first attempt on: others have their turn between attempts.
PATIENCE = 300.0
#: Seconds for the work itself, such as an index of a large table.
_WORK = 3600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
_POLL = 0.2
#: What is no statement of a file: comments, text in quotes, names in quotes, bodies of functions.
_ASIDE = re.compile(
    r"--[^\n]*|/\*.*?\*/|\b[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\"[^\"]*\"|(\$\w*\$).*?\1", re.DOTALL
)
#: The body of a function in SQL: its statements are not the file's. `CASE` in it has an `END` of its own.
_BODY = re.compile(r"\b(BEGIN\s+ATOMIC|CASE|END)\b", re.IGNORECASE)
_ENDS = re.compile(
    r"(?:^|;)\s*(COMMIT|ROLLBACK|ABORT|BEGIN|END|START\s+TRANSACTION|PREPARE\s+TRANSACTION)\b"
    r"(?!(?:\s+(?:WORK|TRANSACTION))?\s+TO\b)",
    re.IGNORECASE,
)


def require_whole(place: str, sql: str) -> None:
    """Raises MigrationError for SQL that begins or ends transactions: half of it could be applied."""
    if found := _ENDS.search(_without_bodies(_ASIDE.sub(" ", sql))):
        raise MigrationError(
            f"{place} says {found[1].upper()}: a migration is one transaction, which is applied whole or not"
            " at all. Take the statement out, or make two files"
        )


def _without_bodies(sql: str) -> str:
    """The same, without what is between `BEGIN ATOMIC` and its `END`."""
    parts: list[str] = []
    kept = begun = depth = 0
    for word in _BODY.finditer(sql):
        if depth:
            depth += -1 if word[1].upper() == "END" else 1
            if not depth:
                kept = word.end()
        elif word[1].upper().startswith("BEGIN"):
            begun, depth = word.start(), 1
            parts.append(sql[kept:begun])
    return " ".join([*parts, sql[begun:] if depth else sql[kept:]])


@asynccontextmanager
async def alone(connection: Connection, lock: int, patience: float) -> AsyncIterator[None]:
    """One program at a time. Raises MigrationError when another one takes longer than `patience` seconds."""
    deadline, logged = time.monotonic() + patience, False
    while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", lock):
        if time.monotonic() > deadline:
            raise MigrationError(f"another program has migrated this database for over {patience:g} s")
        if not logged:
            logged = True
            log.info("migration_waits", error="another program migrates this database")
        await asyncio.sleep(_POLL)
    try:
        yield
    finally:
        if not connection.is_closed():
            await connection.execute("SELECT pg_advisory_unlock($1)", lock)


async def apply(
    connection: Connection, what: str, sql: str, note: tuple[Any, ...], *, patience: float, url: str
) -> None:
    """Apply SQL and note it, in one transaction; a lock that others have is tried for again and again.

    Arguments:
        what: names it.
        note: a statement and its arguments, executed in the same transaction.
        patience: seconds for its locks.
        url: of the database, to ask who holds a lock; may be empty.

    Raises MigrationError, with the right that is missing; nothing was applied then.
    """
    deadline, pause = time.monotonic() + patience, _FIRST_PAUSE
    while True:
        holder = ["another session's lock"]
        try:
            await _once(connection, sql, note, url, holder)
        except PASSING as error:
            if time.monotonic() > deadline:
                raise MigrationError(
                    f"{what} was not applied at all: it has waited for {holder[-1]} for"
                    f" {patience:g} s ({error}). End that transaction, then run this again"
                ) from error
            log.warning(
                "migration_waits",
                migration=what,
                error=f"it waits for {holder[-1]}",
                action=f"tries again in {pause:g} s; writers go on meanwhile",
            )
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        except asyncpg.PostgresError as error:
            role = await connection.fetchval("SELECT current_user")
            raise MigrationError(f"{what} was not applied at all: {error}{advice(error, role)}") from error
        else:
            return


async def _once(connection: Connection, sql: str, note: tuple[Any, ...], url: str, holder: list[str]) -> None:
    pid = connection.get_server_pid()
    watching: AbstractAsyncContextManager[None] = nullcontext()
    if url:
        watching = lock_wait_told(url, pid, holder.append, after=LOCK_WAIT / 2)
    async with connection.transaction(), watching:
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT:g}s'")
        await connection.execute(sql, timeout=_WORK)
        await connection.execute(*note)
