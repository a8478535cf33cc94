"""The chaos checker can go red: a checker that cannot proves nothing."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from chaos.controls.hasty import Control
from chaos.controls.trial import ControlsReport

ENDS_WITHIN = 120


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
