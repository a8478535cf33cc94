"""`python -m benchmarks`: see `--help`."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, cast

import typer

from benchmarks.machine import describe_machine, is_compiled, seconds_of_additions, use_compiled
from benchmarks.report import Circumstances, as_json, markdown, merge, put_into, read
from benchmarks.sections import Context, SectionModule
from demo.workers import unwind_on_signals
from streams.errors import SteadfaustError

README = Path(__file__).with_name("README.md")
_FAILED = 1
_INTERRUPTED = 130


class BenchmarkSection(StrEnum):
    """The sections, in the order in which they are measured; each is a module of this package."""

    MICRO = "micro"
    CHOREOGRAPHY = "choreography"
    SLOW_CALLS = "slow_calls"
    GROWTH = "growth"
    FAILURES = "failures"
    SAGAS = "sagas"
    WORKFLOWS = "workflows"
    RELAY = "relay"


def command(
    *,
    only: Annotated[
        list[BenchmarkSection] | None, typer.Option(help="Measure this section alone; may be given again.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One run with few events, to see that it works; no README.")
    ] = False,
    runs: Annotated[int, typer.Option(min=1, help="How often each thing is measured.")] = 3,
    var: Annotated[Path, typer.Option(help="The benchmarks' directory.")] = Path("var/bench"),
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON; progress goes to stderr.")
    ] = False,
) -> None:
    """Measure; write the tables to VAR/report.json and benchmarks/README.md."""
    unwind_on_signals()
    out = sys.stderr if json_output else sys.stdout
    use_compiled(var.absolute(), lambda line: print(line, file=out, flush=True))
    machine = {**describe_machine(), "hot_path": "compiled" if is_compiled() else "not compiled"}
    circumstances = Circumstances(machine, datetime.now(UTC).date().isoformat(), 1 if quick else runs, quick)
    bench = Bench(var.absolute(), circumstances, quiet=json_output)
    try:
        failed = [part for part in dict.fromkeys(only or BenchmarkSection) if not bench.measured(part)]
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: all that the benchmarks started has ended\n")
        raise typer.Exit(_INTERRUPTED) from None
    if json_output:
        print(as_json(read(bench.report)))
    raise typer.Exit(_FAILED if failed else 0)


class Bench:
    """Measures section after section; what has been measured is kept when a later one fails."""

    def __init__(self, var: Path, circumstances: Circumstances, *, quiet: bool) -> None:
        self.report = var / "report.json"
        self._var = var
        self._circumstances = circumstances
        self._out = sys.stderr if quiet else sys.stdout

    def measured(self, part: BenchmarkSection) -> bool:
        """Measure a section and write it down; False, with the reason on stderr, when it could not be."""
        circumstances = self._now()
        self._say(f"{part}:")
        try:
            module = cast("SectionModule", import_module(f"benchmarks.{part}"))
            section = module.measure(
                Context(self._emptied(part), circumstances.runs, circumstances.quick, self._say)
            )
            merge(self.report, part, section, circumstances)
            text = markdown(section, circumstances)
            if not circumstances.quick:
                README.write_text(put_into(README.read_text(), part, text))
        except SteadfaustError as error:
            sys.stderr.write(f"error: {part} was not measured: {error}\n")
            return False
        self._say(f"\n{text}\n\nwritten to {self.report}\n")
        return True

    def _now(self) -> Circumstances:
        as_ever = self._circumstances
        return replace(as_ever, machine={**as_ever.machine, "additions_s": seconds_of_additions()})

    def _emptied(self, part: BenchmarkSection) -> Path:
        home = self._var / part
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        return home

    def _say(self, line: str) -> None:
        print(line, file=self._out, flush=True)


if __name__ == "__main__":
    typer.run(command)
