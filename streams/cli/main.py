"""The `steadfaust` command: a registry. Each group of commands has a module of its own."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from streams.cli import (
    claims,
    dlq,
    erase,
    handler,
    logs,
    new,
    positions,
    reshard,
    rows,
    saga,
    schemas,
    stack,
    trace,
    waiting,
)
from streams.cli.options import say
from streams.environment import check_names
from streams.errors import MissingExtra, SettingsError, SteadfaustError
from streams.logs import configure_logs
from streams.runtime.compiling import HOT, compile_into
from streams.settings import Settings

app = typer.Typer(
    name="steadfaust",
    help="Reliable messaging on Faust: the local stack, compiled workers, and what operators do.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def check_environment(project: Path = Path("pyproject.toml")) -> None:
    """Check the names of this process's environment variables, for commands.

    `settings` in [tool.steadfaust] of the project names the class with the application's own settings. In a
    folder without that, an unknown name is an error only if it resembles a known one.

    Raises SettingsError: a variable has the name of no setting.
    """
    kind, declared = Settings, False
    if project.exists():
        tool = tomllib.loads(project.read_text()).get("tool", {})
        if named := tool.get("steadfaust", {}).get("settings"):
            kind, declared = _named(str(named), project), True
    check_names(os.environ, kind.model_fields, complete=declared)


def _named(text: str, project: Path) -> type[Settings]:
    module, _, name = text.partition(":")
    sys.path.insert(0, str(project.parent.absolute()))
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        where = f"{project}, `settings` in [tool.steadfaust] is {text!r}"
        raise SettingsError(f"{where}, which cannot be imported ({error}): name it module:Class") from error
    finally:
        sys.path.pop(0)
    if not (isinstance(found, type) and issubclass(found, Settings)):
        raise SettingsError(
            f"{project}, `settings` in [tool.steadfaust] is {text!r}: that is no class of Settings"
        )
    return found


def compile_hot_path(
    *,
    into: Annotated[
        Path, typer.Option(help="Where the compiled copy goes; what is there is replaced.")
    ] = Path("build/compiled"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the environment as JSON.")] = False,
) -> None:
    """Compile the hot path with mypyc, and say how to start workers that use it. Does nothing when these
    sources are compiled already. Needs a C compiler and mypy.
    """
    environment = compile_into(into.absolute())
    if as_json:
        say(json.dumps(environment))
        return
    say(f"compiled {', '.join(HOT)} into {into}; run workers in this directory with", err=True)
    say(" ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items()))


def _version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        say(f"steadfaust {version('steadfaust')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if not {"--help", "--version"} & set(sys.argv):  # how to set it right is to be read whatever is wrong
        check_environment()


def _of_databases(name: str) -> None:
    """Add a group of commands that needs PostgreSQL; without asyncpg, one that says what to install."""
    try:
        app.add_typer(import_module(f"streams.cli.{name}").app, name=name)
    except MissingExtra as error:
        missing = error
        anything = {"ignore_unknown_options": True, "allow_extra_args": True}

        @app.command(name, help=str(missing).replace("[", r"\["), context_settings=anything)
        def _refuse() -> None:
            raise missing


app.command()(new.new)
app.command()(stack.up)
app.command()(stack.down)
app.command()(stack.status)
app.command("logs")(logs.logs)
app.command("compile")(compile_hot_path)
app.command()(erase.erase)
app.command()(reshard.reshard)
app.command()(trace.trace)
app.command()(waiting.waiting)
app.add_typer(dlq.app, name="dlq")
app.add_typer(handler.app, name="handler")
app.add_typer(saga.app, name="saga")
app.add_typer(claims.app, name="claims")
for each in ("db", "inbox", "outbox", "cdc"):
    _of_databases(each)
app.add_typer(positions.app, name="positions")
_of_databases("queue")
app.add_typer(rows.app, name="rows")
app.add_typer(schemas.app, name="schemas")


def main() -> None:
    """Run a command; an error that a user can act on is one line, and exit status 1."""
    configure_logs(logging.WARNING)  # on standard error: what is printed may be for programs
    try:
        app()
    except SteadfaustError as error:
        say(f"error: {error}", err=True)
        sys.exit(1)
