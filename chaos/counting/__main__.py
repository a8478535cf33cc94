"""`python -m chaos.counting --var DIR`: the same counting, under the same faults, on the lane and on Faust.

Exit status 1 only when ours was wrong or a fault was not confirmed; what the others do is reported.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from chaos.counting.contestants import CONTESTANTS, Contestant
from chaos.counting.schedule import SHORTEST, schedule
from chaos.counting.trial import Plan, Result, run
from streams.errors import SteadfaustError
from streams.local import local_stack

REPORT = "counting.json"
_NAMES = ", ".join(contestant.name for contestant in CONTESTANTS)


class Report(msgspec.Struct, frozen=True):
    """The comparison. `passed`: ours was right, and every fault happened."""

    passed: bool
    seed: int
    events: int
    seconds: float
    results: list[Result]


def command(
    var: Annotated[Path, typer.Option(help="An empty directory for the stack, the stores and the logs.")],
    seed: Annotated[int, typer.Option(help="Of the schedule.")] = 1,
    seconds: Annotated[float, typer.Option(min=SHORTEST, help="How long each is under load.")] = 60.0,
    events: Annotated[int, typer.Option(min=1)] = 60_000,
    only: Annotated[list[str] | None, typer.Option(help=f"Some of {_NAMES}.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Count the same events under the same faults, with each contestant in turn."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    chosen = [each for each in CONTESTANTS if not only or each.name in only]
    console = Console(stderr=as_json)
    plan = Plan(events, seconds, schedule(seed, seconds))
    try:
        results = _run(chosen, plan, var.absolute(), console)
    except SteadfaustError as error:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(2) from error
    ours = {contestant.name for contestant in chosen if contestant.ours}
    passed = all(each.confirmed and (each.findings.right or each.name not in ours) for each in results)
    report = msgspec.json.encode(Report(passed, seed, events, seconds, results))
    (var / REPORT).write_bytes(msgspec.json.format(report, indent=2) + b"\n")
    if as_json:
        print(report.decode())
    else:
        console.print(_table(chosen, results))
    raise typer.Exit(0 if passed else 1)


def _run(chosen: list[Contestant], plan: Plan, var: Path, console: Console) -> list[Result]:
    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    results = []
    with local_stack(var, say=say) as stack:
        for contestant in chosen:
            say(f"{contestant.says}: {plan.events:,} events in {plan.seconds:g} s")
            results.append(asyncio.run(run(contestant, plan, stack.bootstrap, var, say)))
    return results


def _table(chosen: list[Contestant], results: list[Result]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for contestant in chosen:
        table.add_column(contestant.says, justify="right")
    rows = {
        "lost events": [f"{each.findings.lost:,}" for each in results],
        "events not handled in the end": [f"{each.findings.left:,}" for each in results],
        "doubled ids": [f"{each.findings.doubled:,}" for each in results],
        "outputs of nothing": [f"{each.findings.invented:,}" for each in results],
        "wrong rows": [f"{each.findings.wrong_rows:,}" for each in results],
        "longest stall, s": [f"{each.stall:.1f}" for each in results],
        "self-crashes": [str(each.crashes) for each in results],
        "hung workers": [str(each.hung) for each in results],
        "all out after, s": [
            "never" if each.finished is None else f"{each.finished:.1f}" for each in results
        ],
        "faults, confirmed": [
            f"{sum(bool(fault.confirmed) for fault in each.faults)} of {len(each.faults)}" for each in results
        ],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f}"


def _end(number: int, _frame: object) -> None:
    """Unwind as Ctrl-C does, so that nothing is left running."""
    sys.exit(128 + number)


if __name__ == "__main__":
    typer.run(command)
