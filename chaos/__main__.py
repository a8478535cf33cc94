"""`python -m chaos`: see `--help`."""

from __future__ import annotations

import random
import subprocess
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from chaos.driver import RATE, RunPlan
from chaos.injection import Say
from chaos.report import encode, markdown, verdict
from chaos.rig.waiting import ChaosFailed
from chaos.run import clear, run_faults
from chaos.schedule import schedule
from demo.workers import PROJECT, unwind_on_signals
from streams.errors import SteadfaustError

_INTERRUPTED = 130
_SHORT = 240.0
_LONG = 1800.0
_SEEDS = 1_000_000
_ENDS_WITHIN = 60.0


class ChaosPart(StrEnum):
    """What can be run alone with `--only`."""

    FAULTS = "faults"
    CONTROLS = "controls"


def command(
    *,
    seed: Annotated[
        int | None, typer.Option(envvar="SEED", help="Repeats a run; random, and printed, when absent.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=30, help="How long the load lasts at least.")] = _SHORT,
    long: Annotated[bool, typer.Option("--long", envvar="LONG", help="Half an hour of load.")] = False,
    var: Annotated[
        Path, typer.Option(help="Chaos's own directory; what the last run left there is removed.")
    ] = Path("var/chaos"),
    called_off: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            envvar="CALLED_OFF",
            help="Beside this share of orders comes one that is called off.",
        ),
    ] = 0.03,
    rate: Annotated[
        float,
        typer.Option(
            min=1, envvar="RATE", help="Messages a second at most: fewer where the machine is slow."
        ),
    ] = RATE,
    only: Annotated[list[ChaosPart] | None, typer.Option(help="A part of it; all unless given.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the report of the faults as Markdown to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the reports as JSON.")] = False,
) -> None:
    """Break workers, brokers, disks and connections under load, then check every order, cent and unit.

    Then show that the check goes red without each protection.
    """
    unwind_on_signals()
    chosen = random.randrange(_SEEDS) if seed is None else seed
    length = _LONG if long else seconds
    say = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    passed, reports = True, {}
    try:
        for part in only or list(ChaosPart):
            clear(var.absolute() / part)
            if part is ChaosPart.FAULTS:
                faults, home = schedule(chosen, length), var.absolute() / part
                plan = RunPlan(chosen, length, home, faults, called_off, rate)
                ok, found = _faults(plan, say, report)
            else:
                ok, found = _controls(var.absolute() / part, as_json=as_json)
            passed = passed and ok
            reports[part] = found
    except SteadfaustError as error:
        sys.stderr.write(f"error: {error}\nSEED={chosen} repeats the run\n")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: all that was started has ended\n")
        raise typer.Exit(_INTERRUPTED) from None
    if as_json:
        print(msgspec.json.encode({"passed": passed, **reports}).decode())
    raise typer.Exit(0 if passed else 1)


def _faults(plan: RunPlan, say: Say, document: Path | None) -> tuple[bool, msgspec.Raw]:
    done = run_faults(plan, say)
    text = markdown(done)
    say(f"\n{text}\n{verdict(done)}")
    if document is not None:
        document.write_text(text)
    return done.passed, msgspec.Raw(encode(done))


def _controls(var: Path, *, as_json: bool) -> tuple[bool, msgspec.Raw]:
    """Run the controls on an empty directory, as a process of their own; returns whether they passed, and
    their JSON (null without `as_json`). Raises ChaosFailed when they could not be run.
    """
    command = [sys.executable, "-m", "chaos.controls", "--var", str(var), *(["--json"] if as_json else [])]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE if as_json else None) as process:
        try:
            output, _ = process.communicate()
        except BaseException:  # Ctrl-C has reached it too: it ends what it has started
            process.terminate()
            process.wait(_ENDS_WITHIN)
            raise
    if process.returncode not in (0, 1):
        raise ChaosFailed(f"the controls ended with status {process.returncode}: their output says why")
    return process.returncode == 0, msgspec.Raw(output.strip() if as_json else b"null")


if __name__ == "__main__":
    typer.run(command)
