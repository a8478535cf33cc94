"""`steadfaust db`: create and update the tables in PostgreSQL.

Exit status: 0 done; 1 an error; 4 `status` found outstanding migrations, or `wait` still found some at its
end.
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

app = typer.Typer(help="Create and update the tables in PostgreSQL.", no_args_is_help=True)

OUTSTANDING = 4
#: Seconds between two checks of `wait`.
_LOOK_AGAIN = 1.0

Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Additional migrations, as NAME=FOLDER; may be repeated. Those in pyproject.toml always apply.",
    ),
]


@app.command("migrate")
def migrate_(
    url: Url = "",
    sets: Sets = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be applied.")] = False,
    as_json: Json = False,
) -> None:
    """Apply outstanding migrations. Several processes may run this at once; they take turns.

    Each file is applied completely or not at all. If another session locks a table, this command keeps trying
    for five minutes.
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
    """List migrations and when each was applied. Exit status 4 if some are outstanding."""
    wanted = migration_sets(sets or [])
    found = with_connection(url, lambda c: standings(c, wanted))
    _print(found, as_json=as_json)
    raise typer.Exit(OUTSTANDING if any(each.applied_at is None for each in found) else 0)


@app.command("wait")
def wait_(
    url: Url = "",
    sets: Sets = None,
    *,
    within: Annotated[float, typer.Option("--within", help="Maximum seconds to wait.", min=0)] = 600.0,
) -> None:
    """Wait until another process has run `migrate` and applied all migrations of this program.

    It also waits for a database that does not answer. A database newer than this program counts as ready.
    """
    wanted = migration_sets(sets or [])
    deadline, said = time.monotonic() + within, ""
    while lacks := _lacks(url, wanted):
        if lacks != said:
            say(f"waiting: {lacks}")
            said = lacks
        if time.monotonic() >= deadline:
            say(f"still not ready after {within:g} s: run `steadfaust db migrate`")
            raise typer.Exit(OUTSTANDING)
        time.sleep(_LOOK_AGAIN)


def _lacks(url: str, wanted: list[MigrationSet]) -> str:
    """Why the database is not ready, or an empty string if it is."""
    try:
        found = with_connection(url, lambda c: outstanding(c, wanted))
    except DatabaseUnavailable as error:
        return str(error)
    return ", ".join(f"{name} {each.number:04d}_{each.name} is not applied" for name, each in found)


def migration_sets(named: list[str], project: Path = Path("pyproject.toml")) -> list[MigrationSet]:
    """The migrations of the library, of `[tool.steadfaust.postgres.migrations]`, and those `named`
    NAME=FOLDER.

    Raises SettingsError for a text of another form, or a folder that does not exist.
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
