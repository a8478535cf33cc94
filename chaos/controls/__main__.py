"""`python -m chaos.controls --var DIR`: whether the checker goes red when a protection is taken away.

Each scenario runs twice, with the same input and the same faults: as it is, which must be green, and without
the protection that is there for it, which must be red. Exit status 1 when one is not.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from chaos.controls.hasty import Control
from chaos.controls.scenarios import SCENARIOS, Scenario
from chaos.controls.trial import ControlsReport, Played, Trial, judge, run
from demo.workers import unwind_on_signals
from streams.errors import SteadfaustError
from streams.logs import configure_logs

REPORT = "controls.json"
#: How many runs share the machine.
_AT_ONCE = 2
#: Runs that a crippled application has to show it: the commit in which it is killed may have had nothing that
#: is missed.
_CHANCES = 3


def command(
    var: Annotated[Path, typer.Option(help="An empty directory for the runs.")],
    only: Annotated[list[Control] | None, typer.Option(help="Some of them; all unless given.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Take away one protection after the other, and see whether the checker notices."""
    configure_logs()  # on standard error: the report may go to the other
    unwind_on_signals()
    chosen = [scenario for scenario in SCENARIOS if not only or scenario.control in only]
    try:
        controls = asyncio.run(_play_all(chosen, var.absolute()))
    except SteadfaustError as error:
        sys.stderr.write(f"error: {error}\n")
        raise typer.Exit(2) from error
    report = ControlsReport(all(each.passed for each in controls), controls)
    encoded = msgspec.json.encode(report)
    (var / REPORT).write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")
    if as_json:
        print(encoded.decode())
    else:
        for scenario, played in zip(chosen, controls, strict=True):
            _show(scenario, played)
    raise typer.Exit(0 if report.passed else 1)


async def _play_all(scenarios: Sequence[Scenario], var: Path) -> list[Played]:
    room = asyncio.Semaphore(_AT_ONCE)

    async def trial(scenario: Scenario, name: str, *, crippled: bool) -> Trial:
        async with room:
            return await run(scenario, var / f"{scenario.control}-{name}", crippled=crippled)

    async def crippled(scenario: Scenario) -> Trial:
        for chance in range(1, _CHANCES):
            found = await trial(scenario, f"crippled-{chance}", crippled=True)
            if found.red:
                return found
        return await trial(scenario, f"crippled-{_CHANCES}", crippled=True)

    async def played(scenario: Scenario) -> Played:
        intact = trial(scenario, "intact", crippled=False)
        return judge(scenario, *await asyncio.gather(intact, crippled(scenario)))

    return await asyncio.gather(*map(played, scenarios))


def _show(scenario: Scenario, played: Played) -> None:
    print(f"{'pass' if played.passed else 'FAIL'}  {scenario.control}: {scenario.says}")
    for name, trial in (("as it is", played.intact), (f"with {scenario.control}", played.crippled)):
        print(f"      {name}: {trial.happened.confirmed or 'its fault is NOT CONFIRMED'}")
        for finding in trial.red:
            print(f"        red: {finding.name}: {finding.says}")
        if not trial.red:
            print("        green")


if __name__ == "__main__":
    typer.run(command)
