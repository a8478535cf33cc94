"""The `steadfaust` command. Each group of commands has its own module, which is imported only when it is
needed, because importing all of them takes a second.
"""

from __future__ import annotations

import logging
import os
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command as made_command
from typer.main import get_group as made_group

from streams.cli.options import say
from streams.environment import check_names
from streams.errors import MissingExtra, SettingsError, SteadfaustError
from streams.logs import configure_logs
from streams.settings import Settings

#: Commands in the order of the help, each with its `module:function` or `module:app` in `streams.cli`.
PLACES = {
    "new": "new:new",
    "up": "stack:up",
    "down": "stack:down",
    "status": "stack:status",
    "logs": "logs:logs",
    "compile": "compile:compile_hot_path",
    "erase": "erase:erase",
    "reshard": "reshard:reshard",
    "trace": "trace:trace",
    "waiting": "waiting:waiting",
    **{name: f"{name}:app" for name in ("dlq", "handler", "saga", "claims", "db", "inbox", "outbox", "cdc")},
    **{name: f"{name}:app" for name in ("positions", "queue", "rows", "schemas")},
}


class _Commands(TyperGroup):
    """Imports a command when it is looked up."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = dict.fromkeys(PLACES, TyperCommand(None))  # names, for "did you mean"

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _command(cmd_name) if cmd_name in PLACES else super().get_command(ctx, cmd_name)


def _command(name: str) -> Any:
    """Import a command, or make one that says what to install if a package is missing."""
    module, _, place = PLACES[name].partition(":")
    made = typer.Typer(add_completion=False)
    try:
        found = getattr(import_module(f"streams.cli.{module}"), place)
    except MissingExtra as error:
        missing = error
        anything = {"ignore_unknown_options": True, "allow_extra_args": True}

        @made.command(name, help=str(missing).replace("[", r"\["), context_settings=anything)
        def _refuse() -> None:
            raise missing

        found = None
    if isinstance(found, typer.Typer):
        made.add_typer(found, name=name)
        return made_group(made).commands[name]
    if found is not None:
        made.command(name)(found)
    return made_command(made)


app = typer.Typer(
    name="steadfaust",
    cls=_Commands,
    help="Reliable messaging on Faust: run a local stack, compile workers, and operate an application.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def check_environment(project: Path = Path("pyproject.toml")) -> None:
    """Check the names of the `STEADFAUST_` variables in this process's environment.

    `settings` in [tool.steadfaust] of the project names the class with the application's own settings.
    Without it, an unknown name is an error only if it resembles a known one.

    Raises SettingsError for a name that is not a setting.
    """
    kind, declared = Settings, False
    if project.exists():
        tool = tomllib.loads(project.read_text("utf-8")).get("tool", {})
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
        raise SettingsError(
            f"{where}, which cannot be imported ({error}): write it as module:Class"
        ) from error
    finally:
        sys.path.pop(0)
    if not (isinstance(found, type) and issubclass(found, Settings)):
        raise SettingsError(
            f"{project}, `settings` in [tool.steadfaust] is {text!r}, which is not a subclass of Settings"
        )
    return found


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
    if not {"--help", "--version"} & set(sys.argv):  # --help works even if a setting is wrong
        check_environment()


def main() -> None:
    """Run a command. A SteadfaustError is printed as one line, with exit status 1."""
    configure_logs(logging.WARNING)  # on standard error, because other programs may read standard output
    try:
        app()
    except SteadfaustError as error:
        say(f"error: {error}", err=True)
        sys.exit(1)
