"""`python -m chaos`: see `--help`."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from chaos.driver import Plan
from chaos.report import encode, markdown, show
from chaos.run import run_faults
from chaos.schedule import schedule
from streams.errors import SteadfaustError

_INTERRUPTED = 130
_SHORT = 150.0
_LONG = 1800.0
_SEEDS = 1_000_000


def command(
    *,
    seed: Annotated[
        int | None, typer.Option(envvar="SEED", help="Repeats a run; random, and printed, when absent.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=30, help="How long the load lasts at least.")] = _SHORT,
    long: Annotated[bool, typer.Option("--long", envvar="LONG", help="Half an hour of load.")] = False,
    var: Annotated[
        Path, typer.Option(help="The run's own directory; what the last run left there is removed.")
    ] = Path("var/chaos"),
    report: Annotated[Path | None, typer.Option(help="Write the report as Markdown to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Break workers, brokers, disks and connections under load, then check every order, cent and unit."""
    console = Console(stderr=as_json)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    chosen = random.randrange(_SEEDS) if seed is None else seed
    length = _LONG if long else seconds
    plan = Plan(chosen, length, var.absolute(), schedule(chosen, length))

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    try:
        done = run_faults(plan, say)
    except SteadfaustError as error:
        sys.stderr.write(f"error: {error}\nSEED={chosen} repeats the run\n")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: all that the run started has ended\n")
        raise typer.Exit(_INTERRUPTED) from None
    show(done, console)
    if report is not None:
        report.write_text(markdown(done))
    if as_json:
        print(encode(done).decode())
    raise typer.Exit(0 if done.passed else 1)


def _end(number: int, _frame: object) -> None:
    """Unwind as Ctrl-C does, so that nothing is left running."""
    sys.exit(128 + number)


if __name__ == "__main__":
    typer.run(command)
