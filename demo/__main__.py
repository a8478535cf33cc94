"""`python -m demo`: see `--help`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agents.settings import Way
from demo.drive import DemoPlan
from demo.purchases import ROWS
from demo.run import run
from demo.workers import unwind_on_signals
from streams.errors import SteadfaustError
from streams.postgres.outbox_owner import RelayKind

_INTERRUPTED = 130


def command(
    *,
    orders: Annotated[int, typer.Option(envvar="ORDERS", min=1, max=ROWS, help="How many to place.")] = 2000,
    var: Annotated[
        Path, typer.Option(help="The demo's own directory; what the last demo left there is removed.")
    ] = Path("var/demo"),
    workers: Annotated[int, typer.Option(min=1, max=8, help="Worker processes.")] = 2,
    choreography: Annotated[
        Way, typer.Option(envvar="STEADFAUST_CHOREOGRAPHY", help="What comes first.")
    ] = Way.STOCK_FIRST,
    kill_worker_after: Annotated[
        int | None, typer.Option(min=0, help="Kill a worker (SIGKILL) after so many settled orders.")
    ] = None,
    attached: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the orders that come with files, 10 B to 5 MB.")
    ] = 0.01,
    relay: Annotated[
        RelayKind, typer.Option(envvar="RELAY", help="Who brings the outbox to Kafka: poll, or cdc.")
    ] = RelayKind.POLL,
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--no-keep",
            envvar="KEEP",
            help="Leave everything up after the report, until Ctrl-C; on a terminal it does so anyway.",
        ),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start the killed worker again.")] = False,
) -> None:
    """Send real orders through the application and check every order, cent and unit."""
    console = Console()
    plan = DemoPlan(
        orders,
        var.absolute(),
        workers,
        choreography,
        kill_worker_after,
        restart,
        attached,
        relay,
        keep=console.is_terminal if keep is None else keep,
    )
    unwind_on_signals()
    try:
        passed = run(plan, console)
    except SteadfaustError as error:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: all that the demo started has ended\n")
        raise typer.Exit(_INTERRUPTED) from None
    raise typer.Exit(0 if passed else 1)


if __name__ == "__main__":
    typer.run(command)
