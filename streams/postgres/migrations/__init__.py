"""Migrations: numbered SQL files, applied once, in order, forward only, by one program at a time.

Each file is applied whole or not at all. A lock that others have is waited for in short attempts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import asyncpg

from streams.postgres.advice import advice
from streams.postgres.bounded import is_pooled
from streams.postgres.connecting import require_session
from streams.postgres.database import Connection
from streams.postgres.errors import MigrationError, PoolerBetween
from streams.postgres.migrations.applying import PATIENCE, alone, apply, require_whole

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

#: Of the advisory lock, so that two programs that migrate at once do it one after the other.
_LOCK = 0x5746_4D49_4752

#: Seconds that a pooler has to let us in.
_ANSWERS = 5.0

#: What files were before, where a later one means the same: 0004 made a publication once.
_FORMER = {
    ("steadfaust", 4): {"2e78278cd55579e860307fe132c383c137f0eaae6438cf9ad65f40bac09abe07"},
}

_READABLE = "SELECT has_table_privilege(to_regclass('applied_migrations'), 'SELECT')"

_TABLE = """
CREATE TABLE IF NOT EXISTS applied_migrations (
    "set"      text        NOT NULL,
    number     int         NOT NULL,
    name       text        NOT NULL,
    digest     text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY ("set", number)
)
"""


class Migration(NamedTuple):
    """A step of a schema: the number and name of its file, and its SQL."""

    number: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        """SHA-256 of the SQL, in hexadecimal."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


class MigrationSet(NamedTuple):
    """The migrations of one owner of tables: the library, or an application.

    Attributes:
        name: the same for good; the database notes it with each migration.
        folder: where the files are, `NNNN_name.sql`, from 0001 without a gap.
    """

    name: str
    folder: Path

    def read(self) -> list[Migration]:
        """The migrations in their order. Raises MigrationError for files that do not make a sequence."""
        found = []
        for path in sorted(self.folder.glob("*.sql")):
            match = _FILE.fullmatch(path.name)
            if match is None:
                raise MigrationError(f"{path}: name a migration NNNN_what_it_does.sql")
            found.append(Migration(int(match[1]), match[2], path.read_text()))
        numbers = [migration.number for migration in found]
        if numbers != list(range(1, len(found) + 1)):
            raise MigrationError(f"{self.folder}: migrations are {numbers}; number them from 1 without a gap")
        return found


class MigrationStatus(NamedTuple):
    """A migration, and when this database got it (ISO 8601); None: not yet."""

    set: str
    number: int
    name: str
    applied_at: str | None


#: The library's own tables.
LIBRARY = MigrationSet("steadfaust", Path(__file__).parent)


async def migrate(
    connection: Connection,
    sets: Sequence[MigrationSet] = (LIBRARY,),
    *,
    patience: float = PATIENCE,
    url: str = "",
) -> list[MigrationStatus]:
    """Apply what the database has not had, each migration in a transaction; returns those.

    The second one waits, then finds nothing to do. A lock that others have is waited for two seconds at
    a time, `patience` seconds in all; `url` is where to ask who has it.

    Raises MigrationError when a file was changed after it had been applied, the database is ahead of this
    program, or a file cannot be applied: those before it stay, and nothing of it does. Raises PoolerBetween.
    """
    if is_pooled(connection):  # the lock belongs to a session
        if not url:
            raise PoolerBetween("a pooler is before PostgreSQL: give `url`, to see whether it lends sessions")
        await require_session(url, "a migration", name="steadfaust", timeout=_ANSWERS)
    async with alone(connection, _LOCK, patience):
        if not await _is_noted(connection):
            what = "the table of migrations"
            await apply(connection, what, _TABLE, ("SELECT 1",), patience=patience, url=url)
        before = {(each.set, each.number) for each in await standings(connection, sets) if each.applied_at}
        for owner in sets:
            for migration in owner.read():
                if (owner.name, migration.number) not in before:
                    await _apply(connection, owner.name, migration, patience, url)
        after = await standings(connection, sets)
    return [each for each in after if (each.set, each.number) not in before]


async def why_unready(connection: Connection, sets: Sequence[MigrationSet] = (LIBRARY,)) -> str:
    """The first migration that the database lacks, and what to do; empty: none, or this role may not know."""
    if await _is_noted(connection) and not await connection.fetchval(_READABLE):
        return ""
    lacks = await outstanding(connection, sets)
    if not lacks:
        return ""
    owner, first = lacks[0]
    more = f" and {len(lacks) - 1} more" if len(lacks) > 1 else ""
    return (
        f"the database lacks migration {first.number:04d}_{first.name} of {owner!r}{more}:"
        " run `steadfaust db migrate`"
    )


async def newer_database(connection: Connection) -> str:
    """A warning where the database has migrations of the library that this program has not; empty:
    nothing, or this role may not know.
    """
    if not await connection.fetchval(_READABLE):
        return ""
    has = await connection.fetchval(
        'SELECT max(number) FROM applied_migrations WHERE "set" = $1', LIBRARY.name
    )
    knows = len(LIBRARY.read())
    if (has or 0) <= knows:
        return ""
    return f"the database has migration {has} of the library, this program knows {knows}: run a newer one"


async def standings(
    connection: Connection, sets: Sequence[MigrationSet] = (LIBRARY,)
) -> list[MigrationStatus]:
    """Every migration of the sets, applied or not. Raises MigrationError as `migrate` does."""
    applied = await _applied(connection)
    found = []
    for owner in sets:
        migrations = owner.read()
        ahead = [number for name, number in applied if name == owner.name and number > len(migrations)]
        if ahead:
            raise MigrationError(
                f"the database has migration {max(ahead)} of {owner.name!r}, this program knows"
                f" {len(migrations)}: run a newer version of the program"
            )
        for migration in migrations:
            row = applied.get((owner.name, migration.number))
            former = _FORMER.get((owner.name, migration.number), set())
            if row is not None and row["digest"] not in {migration.digest, *former}:
                raise MigrationError(
                    f"migration {migration.number:04d}_{migration.name} of {owner.name!r} was changed after"
                    " this database got it: restore the file, and write the change as a new migration"
                )
            at = None if row is None else row["applied_at"].isoformat(timespec="seconds")
            found.append(MigrationStatus(owner.name, migration.number, migration.name, at))
    return found


async def outstanding(
    connection: Connection, sets: Sequence[MigrationSet] = (LIBRARY,)
) -> list[tuple[str, Migration]]:
    """The migrations that the database has not had, each with the name of its set. A newer database, on which
    the version before this may start again, lacks none. Raises MigrationError where they cannot be read.
    """
    applied = await _applied(connection)
    wanted = [(owner.name, migration) for owner in sets for migration in owner.read()]
    return [(name, migration) for name, migration in wanted if (name, migration.number) not in applied]


async def _applied(connection: Connection) -> dict[tuple[str, int], asyncpg.Record]:
    """The rows of what was applied, by set and number."""
    if not await _is_noted(connection):
        return {}
    try:
        rows = await connection.fetch('SELECT "set", number, digest, applied_at FROM applied_migrations')
    except asyncpg.InsufficientPrivilegeError as error:
        role = await connection.fetchval("SELECT current_user")
        raise MigrationError(
            f"the table applied_migrations cannot be read: {error}{advice(error, role)}"
        ) from error
    return {(row["set"], row["number"]): row for row in rows}


async def _is_noted(connection: Connection) -> bool:
    return bool(await connection.fetchval("SELECT to_regclass('applied_migrations') IS NOT NULL"))


async def _apply(connection: Connection, owner: str, migration: Migration, patience: float, url: str) -> None:
    # Not of files that were applied: they may not be changed any more.
    require_whole(f"{migration.number:04d}_{migration.name}.sql", migration.sql)
    note = 'INSERT INTO applied_migrations ("set", number, name, digest) VALUES ($1, $2, $3, $4)'
    await apply(
        connection,
        f"migration {migration.number:04d}_{migration.name} of {owner!r}",
        migration.sql,
        (note, owner, migration.number, migration.name, migration.digest),
        patience=patience,
        url=url,
    )
