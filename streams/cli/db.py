"""`steadfaust db`: the tables in PostgreSQL.

Exit status: 0 done; 1 an error; 4 `status` found migrations that the database has not had, or `wait` did so
to its end.
"""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from streams.cli.database import Url, with_connection
from streams.cli.options import Json, json_line, say
from streams.errors import SettingsError
from streams.postgres.errors import DatabaseUnavailable
from streams.postgres.migrations import (
    LIBRARY,
    MigrationSet,
    MigrationStatus,
    migrate,
    outstanding,
    standings,
)
from streams.settings import Settings

app = typer.Typer(help="PostgreSQL: migrate, status, wait.", no_args_is_help=True)

OUTSTANDING = 4
#: Seconds between two looks of `wait`.
_LOOK_AGAIN = 1.0

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=FOLDER: migrations of an application; those of pyproject.toml too."),
]


@app.command("migrate")
def migrate_(
    url: Url = "",
    sets: Sets = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be applied.")] = False,
    as_json: Json = False,
) -> None:
    """Bring the database's tables up to date, under a lock: several may do so at once.

    A file is applied whole or not at all. A lock that others have is tried for again for five minutes.
    """
    wanted = migration_sets(sets or [])
    if dry_run:
        found = [
            each for each in with_connection(url, lambda c: standings(c, wanted)) if each.applied_at is None
        ]
    else:
        at = url or Settings.read().postgres()
        found = with_connection(at, lambda c: migrate(c, wanted, url=at))
    _print(found, as_json=as_json)
    if not found and not as_json:
        say("nothing to do")


@app.command()
def status(url: Url = "", sets: Sets = None, *, as_json: Json = False) -> None:
    """List the migrations and when the database got them; exit status 4 when some are outstanding."""
    wanted = migration_sets(sets or [])
    found = with_connection(url, lambda c: standings(c, wanted))
    _print(found, as_json=as_json)
    raise typer.Exit(OUTSTANDING if any(each.applied_at is None for each in found) else 0)


@app.command("wait")
def wait_(
    url: Url = "",
    sets: Sets = None,
    *,
    within: Annotated[float, typer.Option("--within", help="Seconds to wait at most.", min=0)] = 600.0,
) -> None:
    """Wait until the database has every migration of this program, which `migrate` elsewhere applies.

    A database that does not answer is waited for, too. One that is newer than this program lacks nothing.
    """
    wanted = migration_sets(sets or [])
    deadline, said = time.monotonic() + within, ""
    while lacks := _lacks(url, wanted):
        if lacks != said:
            say(f"waiting: {lacks}")
            said = lacks
        if time.monotonic() >= deadline:
            say(f"not within {within:g} s: run `steadfaust db migrate`")
            raise typer.Exit(OUTSTANDING)
        time.sleep(_LOOK_AGAIN)


def _lacks(url: str, wanted: list[MigrationSet]) -> str:
    """Why the database is not ready; empty when it is."""
    try:
        found = with_connection(url, lambda c: outstanding(c, wanted))
    except DatabaseUnavailable as error:
        return str(error)
    return ", ".join(f"{name} {each.number:04d}_{each.name} is not applied" for name, each in found)


def migration_sets(named: list[str], project: Path = Path("pyproject.toml")) -> list[MigrationSet]:
    """The library's, those in `[tool.steadfaust.postgres.migrations]` of the project, and those named.

    Raises SettingsError for one that is not NAME=FOLDER, or names no folder.
    """
    found = {LIBRARY.name: LIBRARY.folder}
    if project.exists():
        tool = tomllib.loads(project.read_text("utf-8")).get("tool", {})
        declared = tool.get("steadfaust", {}).get("postgres", {}).get("migrations", {})
        found |= {str(name): project.parent / str(folder) for name, folder in declared.items()}
    for each in named:
        name, given, folder = each.partition("=")
        if not (name and given and folder):
            raise SettingsError(f"--set {each}: give NAME=FOLDER, such as orders=agents/api/migrations")
        found[name] = Path(folder)
    for name, place in found.items():
        if not place.is_dir():
            raise SettingsError(f"migrations of {name!r}: there is no folder {place}")
    return [MigrationSet(name, folder) for name, folder in found.items()]


def _print(found: list[MigrationStatus], *, as_json: bool) -> None:
    for each in found:
        if as_json:
            say(json_line(each._asdict()))
        else:
            when = each.applied_at or "not applied"
            say(f"{each.set:<12} {each.number:04d} {each.name:<28} {when}")
