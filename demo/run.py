"""One run: stack, workers, orders, the check, the report. What it started has ended when it returns."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import count

import msgspec
from rich.console import Console

from demo.drive import DemoPlan, Drive
from demo.edge import DemoEdge
from demo.ground import REPORT, DemoFailed, Say, stack_in
from demo.report import DemoReport, show
from demo.verdict import Verdict
from demo.workers import PROJECT, Workers, environment, free_ports, held_slots
from streams.errors import SteadfaustError
from streams.local.loopback import HOST

_CHECK_WITHIN = 600.0


def run(plan: DemoPlan, console: Console) -> bool:
    """Run it; returns whether every check holds. Raises DemoFailed or StackError."""

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    port, overview = addresses(plan)
    say(f"see it happen: {overview} has the overview, from when the workers are up until the end")
    with stack_in(plan.var, plan.relay, say) as stack:
        settings = environment(
            plan.var,
            STEADFAUST_CHOREOGRAPHY=plan.choreography.value,
            STEADFAUST_WEB_PORT=str(port),
            STEADFAUST_OUTBOX=plan.relay.value,
        )
        with Workers(plan.var, settings, say) as workers, DemoEdge(plan.var, settings, say) as edge:
            drive = Drive(plan, stack, workers, edge, say)
            try:
                asyncio.run(drive.run(console))
                say(
                    "every order is settled; checking, from the file, the ledger, topics and PostgreSQL alone"
                )
                report = _report(drive, verdict=_check(plan, settings))
            except SteadfaustError as error:
                _report(drive, error=str(error)).write(plan.var / REPORT)
                if plan.keep:  # for a look at what failed
                    say(f"error: {error}")
                    _stay(workers, say)
                raise
            report.write(plan.var / REPORT)
            show(report, console)
            say(f"report: {plan.var / REPORT}")
            if plan.keep:
                _stay(workers, say)
            return report.passed


def addresses(plan: DemoPlan) -> tuple[int, str]:
    """The port from which the workers' slots count, and where the first of them will serve its pages."""
    held = held_slots(plan.var)
    port = free_ports(plan.workers + len(held))
    slot = next(number for number in count() if number not in held)  # a worker takes the lowest free one
    return port, f"http://{HOST}:{port + slot}/"


def _check(plan: DemoPlan, settings: Mapping[str, str]) -> Verdict:
    """By a process of its own, which shares nothing with the workers or with us but the directory."""
    command = [sys.executable, "-m", "demo.check", "--var", str(plan.var), "--orders", str(plan.orders)]
    command += ["--attached", str(plan.attached)]
    try:
        ended = subprocess.run(
            [*command, "--json"],
            cwd=PROJECT,
            env=dict(settings),
            capture_output=True,
            timeout=_CHECK_WITHIN,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise DemoFailed(f"the check did not end within {_CHECK_WITHIN:.0f} s") from None
    if ended.returncode not in (0, 1) or not ended.stdout:
        errors = ended.stderr.decode(errors="replace").strip().splitlines()
        raise DemoFailed(f"the check ended with status {ended.returncode}: {errors[-1] if errors else ''}")
    return msgspec.json.decode(ended.stdout, type=Verdict)


def _report(drive: Drive, *, verdict: Verdict | None = None, error: str = "") -> DemoReport:
    plan, tally = drive.plan, drive.tally
    return DemoReport(
        passed=verdict is not None and verdict.passed,
        orders=plan.orders,
        placed=tally.placed,
        settled=tally.settled,
        workers=plan.workers,
        choreography=plan.choreography.value,
        relay=plan.relay.value,
        seconds=round(tally.seconds, 2),
        orders_per_second=round(tally.rate, 1),
        warm_up=tally.warm_up,
        under_way=tally.half_and_most(),
        killed=drive.killed,
        restarted=bool(drive.killed) and plan.restart,
        died=drive.died,
        error=error,
        verdict=verdict,
    )


def _stay(workers: Workers, say: Say) -> None:
    """Leave everything up, to look around."""
    for worker in workers.alive:
        say(f"worker {worker.number} (pid {worker.process.pid}): {workers.address(worker)}")
    say("Kafka, the gateway and the workers stay up until Ctrl-C")
    if workers.alive:
        say(f"the dead letters: steadfaust dlq list --worker {workers.address(workers.alive[0])}")
        say(f"the orders as sagas: steadfaust saga list --worker {workers.address(workers.alive[0])}")
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
