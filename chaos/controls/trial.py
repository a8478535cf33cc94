"""One run of a scenario, with its control or without, and what the checker says of it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec

from chaos.controls.hasty import Control
from chaos.controls.scenarios import Scenario
from chaos.controls.stage import APP, LANES, ORDERS, PARTITIONS, Stage, staged
from chaos.rig.commits import CommitWatch
from chaos.rig.network import POSTGRES
from chaos.rig.records import COMMITS, REQUESTS, RUN, CommitTimes, Happened, ProcessEnd, RunRecords
from chaos.run import checked
from demo.findings import Finding


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
        over_http=scenario.over_http,
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
        edge = await stage.database.edge.stop("the run is over") if stage.database is not None else []
        _record(stage, scenario, happened, watch.commits(), edge)
        report = await asyncio.to_thread(checked, var)
    return Trial(happened, [each for each in report.findings if not each.passed])


async def _play(scenario: Scenario, stage: Stage) -> Happened:
    playing = asyncio.create_task(scenario.play(stage)) if scenario.script or scenario.meanwhile else None
    try:
        await stage.place()
        # What repeats in the input is counted when all of it is there.
        happened = await (playing or scenario.play(stage))
        await stage.until_handled()
    finally:
        if playing is not None:
            playing.cancel()
    return happened


def _record(
    stage: Stage, scenario: Scenario, happened: Happened, commits: CommitTimes, edge: list[ProcessEnd]
) -> None:
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
        postgres=stage.database.stack.url(POSTGRES) if stage.database is not None else "",
        edge=edge,
    )
    if stage.database is not None:
        (stage.var / REQUESTS).write_bytes(msgspec.json.encode(stage.database.requests))
    (stage.var / RUN).write_bytes(msgspec.json.encode(run))
    (stage.var / COMMITS).write_bytes(msgspec.json.encode(commits))


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario as it is, and with its control. `passed`: the one was green, the other red as it must."""

    control: Control
    passed: bool
    intact: Trial
    crippled: Trial


class ControlsReport(msgspec.Struct, frozen=True):
    """All of them."""

    passed: bool
    controls: list[Played]


def judge(scenario: Scenario, intact: Trial, crippled: Trial) -> Played:
    """Both had their fault; the one is green; of the other, what the protection is there for is red."""
    confirmed = bool(intact.happened.confirmed and crippled.happened.confirmed)
    red = any(each.name == scenario.finds for each in crippled.red)
    return Played(
        control=scenario.control,
        passed=confirmed and not intact.red and red,
        intact=intact,
        crippled=crippled,
    )
