"""`python -m chaos.counting --var DIR`: the same counting, under the same faults, on the lane and on Faust.

Exit status 1 only when ours was wrong or a fault was not confirmed; what the others do is reported.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from chaos.counting.contestants import CONTESTANTS, Contestant
from chaos.counting.report import report, table
from chaos.counting.schedule import SHORTEST, schedule
from chaos.counting.trial import Result, TrialPlan, run
from chaos.rig.waiting import ChaosFailed
from streams.errors import SteadfaustError
from streams.local import local_stack
from streams.logs import configure_logs

REPORT = "counting.json"
_NAMES = ", ".join(contestant.name for contestant in CONTESTANTS)


def command(
    var: Annotated[Path, typer.Option(help="An empty directory for the stack, the stores and the logs.")],
    seed: Annotated[int, typer.Option(help="Of the schedule.")] = 1,
    seconds: Annotated[float, typer.Option(min=SHORTEST, help="How long each is under load.")] = 60.0,
    events: Annotated[int, typer.Option(min=1000)] = 45_000,
    only: Annotated[list[str] | None, typer.Option(help=f"Some of {_NAMES}.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Count the same events under the same faults, with each contestant in turn."""
    configure_logs()  # on standard error: the report may go to the other
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    chosen = [each for each in CONTESTANTS if not only or each.name in only]
    console = Console(stderr=as_json)
    plan = TrialPlan(events, seconds, schedule(seed, seconds))
    try:
        results = _run_all(chosen, plan, var.absolute(), console)
    except SteadfaustError as error:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(2) from error
    found = report(chosen, results, seed=seed, plan=plan)
    encoded = msgspec.json.encode(found)
    (var / REPORT).write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")
    if as_json:
        print(encoded.decode())
    else:
        console.print(table(chosen, results))
    raise typer.Exit(0 if found.passed else 1)


def _run_all(chosen: Sequence[Contestant], plan: TrialPlan, var: Path, console: Console) -> list[Result]:
    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    results = []
    with local_stack(var, say=say) as stack:
        for contestant in chosen:
            say(f"{contestant.says}: {plan.events:,} events in {plan.seconds:g} s")
            try:
                result = asyncio.run(run(contestant, plan, stack.bootstrap, var, say))
            except ChaosFailed as error:  # the comparison goes on: it may be another's
                say(f"  {error}")
                result = Result(name=contestant.name, error=str(error))
            results.append(result)
    return results


def _end(number: int, _frame: object) -> None:
    """Unwind as Ctrl-C does, so that nothing is left running."""
    sys.exit(128 + number)


if __name__ == "__main__":
    typer.run(command)
