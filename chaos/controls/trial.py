"""One run of a scenario, with its control or without, and what the checker says of it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import msgspec

from chaos.check import CheckReport
from chaos.controls.scenarios import Scenario
from chaos.controls.stage import APP, LANES, ORDERS, PARTITIONS, Stage, staged
from chaos.rig.commits import CommitWatch
from chaos.rig.records import COMMITS, RUN, CommitTimes, Happened, RunRecords
from chaos.rig.waiting import ChaosFailed
from demo.findings import Finding
from demo.workers import PROJECT

_CHECKED_WITHIN = 120.0


class Trial(msgspec.Struct, frozen=True):
    """What happened, and what the checker found wrong."""

    happened: Happened
    red: list[Finding]


async def run(scenario: Scenario, var: Path, *, crippled: bool) -> Trial:
    """Play it and have it checked. Raises ChaosFailed when something of it does not come about."""
    control = scenario.control if crippled else ""
    async with staged(
        var,
        control=control,
        copies=scenario.copies,
        script=scenario.script,
        session_timeout=scenario.session_timeout,
        poison_every=scenario.poison_every,
    ) as stage:
        watch = CommitWatch(stage.bootstrap, APP, PARTITIONS, LANES)
        watching = asyncio.create_task(watch.run())
        try:
            happened = await _play(scenario, stage)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        await stage.fleet.stop_all("the run is over")
        _record(stage, scenario, happened, watch.commits())
        report = await _check(var)
    return Trial(happened, [each for each in report.findings if not each.passed])


async def _play(scenario: Scenario, stage: Stage) -> Happened:
    playing = asyncio.create_task(scenario.play(stage)) if scenario.script else None
    try:
        await stage.place()
        # What repeats in the input is counted when all of it is there.
        happened = await (playing or scenario.play(stage))
        await stage.until_handled()
    finally:
        if playing is not None:
            playing.cancel()
    return happened


def _record(stage: Stage, scenario: Scenario, happened: Happened, commits: CommitTimes) -> None:
    run = RunRecords(
        seed=0,
        app_id=APP,
        bootstrap=stage.bootstrap,
        gateway=stage.gateway,
        partitions=PARTITIONS,
        lanes=LANES,
        session_timeout=scenario.session_timeout,
        orders=ORDERS,
        load=stage.span,
        faults=[happened],
        workers=[worker.ended() for worker in stage.fleet.workers],
        poison_every=scenario.poison_every,
        orchestrated=True,
    )
    (stage.var / RUN).write_bytes(msgspec.json.encode(run))
    (stage.var / COMMITS).write_bytes(msgspec.json.encode(commits))


async def _check(var: Path) -> CheckReport:
    """By the checker's own process, as it checks any run."""
    checker = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "chaos.check", "--var", str(var), "--json"),
        cwd=PROJECT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_CHECKED_WITHIN):
            output, errors = await checker.communicate()
    except TimeoutError:
        checker.kill()
        await checker.wait()
        raise ChaosFailed(f"{var}: the checker did not end within {_CHECKED_WITHIN:.0f} s") from None
    if checker.returncode not in (0, 1):
        raise ChaosFailed(f"{var}: the checker could not look: {errors.decode(errors='replace')[-500:]}")
    return msgspec.json.decode(output, type=CheckReport)
