"""The `steadfaust` command: a registry. Each group of commands has a module of its own."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from streams.cli import (
    cdc,
    claims,
    compiling,
    db,
    dlq,
    handler,
    inbox,
    logs,
    outbox,
    positions,
    queue,
    rows,
    saga,
    schemas,
    stack,
    trace,
)
from streams.cli.environment import check_environment
from streams.errors import SteadfaustError
from streams.logs import configure_logs

app = typer.Typer(
    name="steadfaust",
    help="Reliable messaging on Faust: the local stack, compiled workers, and what operators do.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        typer.echo(f"steadfaust {version('steadfaust')}")
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


app.command()(stack.up)
app.command()(stack.down)
app.command()(stack.status)
app.command("logs")(logs.logs)
app.command("compile")(compiling.compile_hot_path)
app.command()(trace.trace)
app.add_typer(dlq.app, name="dlq")
app.add_typer(handler.app, name="handler")
app.add_typer(saga.app, name="saga")
app.add_typer(claims.app, name="claims")
app.add_typer(db.app, name="db")
app.add_typer(inbox.app, name="inbox")
app.add_typer(outbox.app, name="outbox")
app.add_typer(cdc.app, name="cdc")
app.add_typer(positions.app, name="positions")
app.add_typer(queue.app, name="queue")
app.add_typer(rows.app, name="rows")
app.add_typer(schemas.app, name="schemas")


def main() -> None:
    """Run a command; an error that a user can act on is one line, and exit status 1."""
    configure_logs(logging.WARNING)  # on standard error: what is printed may be for programs
    try:
        app()
    except SteadfaustError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
