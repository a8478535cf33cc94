"""Migrations: numbered SQL files, applied once, in order, forward only, by one program at a time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from streams.postgres.database import Connection
from streams.postgres.errors import MigrationError

_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

#: Of the advisory lock, so that two programs that migrate at once do it one after the other.
_LOCK = 0x5746_4D49_4752

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


class Standing(NamedTuple):
    """A migration, and when this database got it (ISO 8601); None: not yet."""

    set: str
    number: int
    name: str
    applied_at: str | None


#: The library's own tables.
LIBRARY = MigrationSet("steadfaust", Path(__file__).parent)


async def migrate(connection: Connection, sets: Sequence[MigrationSet] = (LIBRARY,)) -> list[Standing]:
    """Apply what the database has not had, each migration in a transaction; returns those.

    Whoever comes second waits, then finds nothing to do. Raises MigrationError when a file was changed after
    it had been applied, or the database is ahead of this program.
    """
    await connection.execute("SELECT pg_advisory_lock($1)", _LOCK)
    try:
        await connection.execute(_TABLE)
        before = {(each.set, each.number) for each in await standings(connection, sets) if each.applied_at}
        for owner in sets:
            for migration in owner.read():
                if (owner.name, migration.number) not in before:
                    await _apply(connection, owner.name, migration)
        after = await standings(connection, sets)
    finally:
        await connection.execute("SELECT pg_advisory_unlock($1)", _LOCK)
    return [each for each in after if (each.set, each.number) not in before]


async def standings(connection: Connection, sets: Sequence[MigrationSet] = (LIBRARY,)) -> list[Standing]:
    """Every migration of the sets, applied or not. Raises MigrationError as `migrate` does."""
    known = await connection.fetchval("SELECT to_regclass('applied_migrations') IS NOT NULL")
    rows = (
        await connection.fetch('SELECT "set", number, digest, applied_at FROM applied_migrations')
        if known
        else []
    )
    applied = {(row["set"], row["number"]): row for row in rows}
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
            if row is not None and row["digest"] != migration.digest:
                raise MigrationError(
                    f"migration {migration.number:04d}_{migration.name} of {owner.name!r} was changed after"
                    " this database got it: restore the file, and write the change as a new migration"
                )
            at = None if row is None else row["applied_at"].isoformat(timespec="seconds")
            found.append(Standing(owner.name, migration.number, migration.name, at))
    return found


async def _apply(connection: Connection, owner: str, migration: Migration) -> None:
    async with connection.transaction():
        await connection.execute(migration.sql)
        await connection.execute(
            'INSERT INTO applied_migrations ("set", number, name, digest) VALUES ($1, $2, $3, $4)',
            owner,
            migration.number,
            migration.name,
            migration.digest,
        )
