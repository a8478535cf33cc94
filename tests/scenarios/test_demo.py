"""`python -m demo` as anybody runs it, on a directory of its own."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

import msgspec
import psutil
import pytest

from demo.purchases import LARGEST, ExpectedOutcome, outcome, purchases
from demo.report import DemoReport
from demo.trouble import poison, tiers
from demo.workers import PROJECT
from streams.local import running
from tests.waiting import BOUND, eventually

#: A machine that others use, too, needs several times as long.
pytestmark = pytest.mark.timeout(1800)

ORDERS = 300
BOUGHT = purchases(ORDERS)

ALONE = pytest.mark.verify("the demo: a run with a kill and one that is interrupted stand for all")


def demo(var: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo", "--orders", str(ORDERS), "--var", str(var), *more],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(var: Path) -> list[psutil.Process]:
    """Everything that runs for a directory: by its command line, or by its environment."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        environment = process.info["environ"] or {}
        if environment.get("STEADFAUST_VAR") == str(var) or str(var) in " ".join(
            process.info["cmdline"] or []
        ):
            found.append(process)
    return found


@pytest.mark.promise("undecodable", "among real orders, some of which have the same key")
@pytest.mark.promise(
    "retries",
    "charges that the gateway turns away up to five times go through every tier, each once, "
    "and are made once, also with a worker killed",
)
@pytest.mark.promise("cents-and-pieces", "also with a worker killed, restarted or not")
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(
            ["--choreography", "payment-first", "--attached", "0.2"],
            id="payment-first-with-files",
            marks=ALONE,
        ),
        pytest.param(["--relay", "cdc"], id="relayed-by-change-data-capture", marks=ALONE),
        pytest.param(["--kill-worker-after", "50", "--restart"], id="killed-and-restarted"),
    ],
)
def test_every_order_cent_and_unit_adds_up(tmp_path: Path, how: list[str]) -> None:
    with demo(tmp_path, *how) as ran:
        output, _ = ran.communicate()
    assert ran.returncode == 0, output
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=DemoReport)
    called_for = [outcome(purchase) for purchase in BOUGHT]
    assert report.passed
    assert (report.placed, report.settled, report.died) == (ORDERS, ORDERS, 0)
    assert len(report.killed) == ("--kill-worker-after" in how)
    assert report.relay == ("cdc" if "cdc" in how else "poll")
    assert report.verdict is not None
    assert len(report.verdict.findings) == 12
    assert all(finding.passed for finding in report.verdict.findings)
    figures = report.verdict.figures
    assert figures.confirmed == called_for.count(ExpectedOutcome.CONFIRMED)
    assert figures.cancelled == {
        kind: called_for.count(kind)
        for kind in ExpectedOutcome
        if kind is not ExpectedOutcome.CONFIRMED and kind in called_for
    }
    assert figures.captured_cents - figures.refunded_cents == figures.confirmed_cents
    assert figures.received == figures.on_hand + figures.shipped
    assert figures.dead_letters == Counter(bad.error for bad in map(poison, BOUGHT) if bad is not None)
    called = Counter(f"retry-{tier}" for purchase in BOUGHT for tier in tiers(purchase))
    assert figures.put_off.keys() == called.keys()
    # What a killed worker requested, and never committed, counts at the gateway alone.
    in_vain = 2 if report.killed else 0
    assert all(figures.put_off[tier] >= called[tier] - in_vain for tier in called)
    assert figures.by_reference >= 3
    assert figures.by_reference_bytes > 3 * LARGEST
    assert running(tmp_path) is None
    assert processes_of(tmp_path) == []


@pytest.mark.verify("unit/demo: what an interrupt ends; the demo itself runs in `make test`")
@pytest.mark.parametrize(
    ("moment", "number"), [("starting Kafka", signal.SIGTERM), ("placing orders", signal.SIGINT)]
)
def test_interrupted_at_any_moment_it_leaves_nothing_running(
    tmp_path: Path, number: signal.Signals, moment: str
) -> None:
    with demo(tmp_path) as ran:
        assert ran.stdout is not None
        address = re.search(r"http://\S+", ran.stdout.readline())
        assert address is not None, "the first line says where to look"
        for line in ran.stdout:
            if moment in line:
                break
        if moment == "placing orders":
            with urlopen(address[0]) as overview:
                assert b"orders.open" in overview.read()
        os.kill(ran.pid, number)
        rest, _ = ran.communicate(timeout=BOUND)
    assert ran.returncode == 128 + number, rest
    eventually(lambda: not processes_of(tmp_path), "all processes have ended")
