"""The chaos checker can go red: a checker that cannot proves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from chaos.controls.control import Control
from chaos.controls.verdict import Report


@pytest.fixture(autouse=True)
def _no_worker_outlives_its_test() -> None:
    """The world of the other scenarios is not needed: each control has one of its own."""


@pytest.mark.timeout(600)
def test_the_checker_goes_red_without_each_protection_and_only_then(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "chaos.controls", "--var", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert ended.stdout, ended.stderr
    report = msgspec.json.decode(ended.stdout, type=Report)
    assert {played.control for played in report.controls} == set(Control)
    assert [played for played in report.controls if not played.passed] == []
    assert ended.returncode == 0
