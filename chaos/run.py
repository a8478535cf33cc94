"""The faults from beginning to end: an empty directory, the stack, the drive, the check, the report."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import structlog

from chaos.check import CheckReport
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
        notes = asyncio.run(Driver(plan, stack, say).run())
        say("the workers have ended; checking, from the input, the topics, the ledger and the disks alone")
        found = checked(plan.var)
    report = RunReport(
        problems=notes.problems,
        left_out=notes.left_out,
        seconds=round(time.monotonic() - began, 1),
        sent=notes.sent,
        again=notes.again,
        run=notes.run,
        checked=found,
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


def checked(var: Path) -> CheckReport:
    """What the checker finds, as a process of its own, which shares with us nothing but the directory. Raises
    ChaosFailed when it cannot look, or not in time.
    """
    command = [sys.executable, "-m", "chaos.check", "--var", str(var), "--json"]
    try:
        ended = subprocess.run(command, cwd=PROJECT, capture_output=True, timeout=_CHECK_WITHIN, check=False)
    except subprocess.TimeoutExpired:
        raise ChaosFailed(f"{var}: the check did not end within {_CHECK_WITHIN:.0f} s") from None
    if ended.returncode not in (0, 1) or not ended.stdout:
        errors = ended.stderr.decode(errors="replace").strip()[-500:]
        raise ChaosFailed(f"{var}: the check ended with status {ended.returncode}: {errors}")
    return msgspec.json.decode(ended.stdout, type=CheckReport)
