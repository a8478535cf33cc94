"""`python -m chaos` itself, and its checker, which can go red."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from chaos.controls.hasty import Control
from chaos.controls.trial import ControlsReport
from streams.local import running
from tests.waiting import BOUND, eventually

pytestmark = pytest.mark.promise("chaos", "a short run")

PROJECT = Path(__file__).parents[2]
SEED, SECONDS = 667, 120  # in it the object store is away, a worker, a disk and PostgreSQL fail


def command(var: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "chaos", "--only", "faults", "--var", str(var), *options]


@pytest.mark.timeout(1800)
@pytest.mark.verify("many faults at once: each has a scenario of its own in `make test`")
def test_every_order_cent_and_unit_survives_two_minutes_of_faults(tmp_path: Path) -> None:
    options = ["--seed", str(SEED), "--seconds", str(SECONDS), "--json"]
    ended = subprocess.run(
        command(tmp_path, *options), cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)["faults"]
    kinds = {fault["kind"] for fault in report["run"]["faults"]}
    assert len(kinds) >= 5
    assert kinds >= {"s3_down", "kill_worker", "failing_disk", "failover_postgres"}
    assert all(fault["confirmed"] for fault in report["run"]["faults"])
    assert report["run"]["orders"] > 1000


def workers_in(var: Path) -> list[psutil.Process]:
    """Processes that were started to work in this directory."""
    found = []
    for lock in var.glob("faults/workers/*/slot-*/lock"):
        text = lock.read_text()
        if text and psutil.pid_exists(int(text)):
            found.append(psutil.Process(int(text)))
    return found


@pytest.mark.timeout(900)
@pytest.mark.verify("an interrupted command: the demo covers it")
def test_ctrl_c_ends_all_that_was_started(tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path), cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as chaos:
        eventually(lambda: len(workers_in(tmp_path)) == 3, "three workers")
        started = [chaos, *workers_in(tmp_path), *psutil.Process(chaos.pid).children(recursive=True)]
        chaos.send_signal(signal.SIGINT)
        _, errors = chaos.communicate(timeout=BOUND)
    assert chaos.returncode == 130
    assert errors.endswith("interrupted: all that was started has ended\n")
    assert running(tmp_path / "faults") is None
    assert [process for process in started if psutil.pid_exists(process.pid)] == []


ENDS_WITHIN = 120


@pytest.mark.promise("chaos-controls")
@pytest.mark.timeout(1800)
@pytest.mark.verify("a checker that sees: test_chaos_check.py covers it")
def test_the_checker_goes_red_without_each_protection_and_only_then(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "chaos.controls", "--var", str(tmp_path), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as controls:
        try:
            output, errors = controls.communicate()
        finally:
            controls.terminate()  # if it has not ended: it ends what it has started
            controls.wait(ENDS_WITHIN)
    assert output, errors
    report = msgspec.json.decode(output, type=ControlsReport)
    assert {played.control for played in report.controls} == set(Control)
    assert [played for played in report.controls if not played.passed] == []
    assert controls.returncode == 0
