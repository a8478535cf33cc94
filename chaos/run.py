"""The faults from beginning to end: an empty directory, the stack, the drive, the check, the report."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import structlog

from chaos.check import CheckReport as Checked
from chaos.driver import Driver, RunPlan, stack_of
from chaos.injection import Say
from chaos.report import RunReport, encode
from chaos.rig.waiting import ChaosFailed
from demo.workers import PROJECT, held_slots

REPORT = "report.json"
_MARK = "made-by-chaos"
_CHECK_WITHIN = 900.0


def run_faults(plan: RunPlan, say: Say) -> RunReport:
    """Run it in its empty directory; what it started has ended when it returns.

    Raises ChaosFailed or StackError when there was nothing to check.
    """
    began = time.monotonic()
    _log_to(plan.var / "log" / "driver.log")
    say(f"seed {plan.seed}: {len(plan.faults)} faults over {plan.seconds:.0f} s of load, in {plan.var}")
    with stack_of(plan, say) as stack:
        told = asyncio.run(Driver(plan, stack, say).run())
        say("the workers have ended; checking, from the input, the topics, the ledger and the disks alone")
        checked = _check(plan.var)
    report = RunReport(
        problems=told.problems,
        left_out=told.left_out,
        seconds=round(time.monotonic() - began, 1),
        sent=told.sent,
        again=told.again,
        run=told.run,
        checked=checked,
    )
    (plan.var / REPORT).write_bytes(encode(report))
    return report


def clear(var: Path) -> None:
    """Empty the directory of what an earlier run left, and of nothing else. Raises ChaosFailed."""
    if var.exists() and any(var.iterdir()):
        if not (var / _MARK).exists():
            raise ChaosFailed(f"{var} holds data that no chaos run made: choose another --var")
        if pids := held_slots(var).values():
            raise ChaosFailed(f"workers still run in {var}: end pid {', '.join(pids)} first")
        shutil.rmtree(var)
    var.mkdir(parents=True, exist_ok=True)
    (var / _MARK).write_text("The next chaos run empties this directory.\n")


def _log_to(path: Path) -> None:
    """What clients of the driver say of brokers that are away belongs to no screen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=path, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        logger_factory=structlog.WriteLoggerFactory(path.open("a")),
    )


def _check(var: Path) -> Checked:
    """By a process of its own, which shares nothing with the workers or with us but the directory."""
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "chaos.check", "--var", str(var), "--json"],
            cwd=PROJECT,
            env=dict(os.environ),
            capture_output=True,
            timeout=_CHECK_WITHIN,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise ChaosFailed(f"the check did not end within {_CHECK_WITHIN:.0f} s") from None
    if ended.returncode not in (0, 1) or not ended.stdout:
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        raise ChaosFailed(f"the check ended with status {ended.returncode}: {said[-1] if said else ''}")
    return msgspec.json.decode(ended.stdout, type=Checked)
