"""The parts of `python -m chaos`: the faults, and the commands that show what they prove."""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from pathlib import Path

import msgspec

from chaos.rig.waiting import ChaosFailed
from demo.workers import PROJECT


class ChaosPart(StrEnum):
    """What can be run alone with `--only`."""

    FAULTS = "faults"
    CONTROLS = "controls"
    COMPARISON = "comparison"


_MODULES = {ChaosPart.CONTROLS: "chaos.controls", ChaosPart.COMPARISON: "chaos.counting"}
_ENDS_WITHIN = 60.0


def run_command(part: ChaosPart, var: Path, *, as_json: bool) -> tuple[bool, msgspec.Raw]:
    """Run a part that is a command of its own, on an empty directory; returns whether it passed, and its JSON
    (null unless asked for). Raises ChaosFailed when it could not be run.
    """
    options = ["--json"] if as_json else []
    with subprocess.Popen(
        [sys.executable, "-m", _MODULES[part], "--var", str(var), *options],
        cwd=PROJECT,
        stdout=subprocess.PIPE if as_json else None,
    ) as process:
        try:
            output, _ = process.communicate()
        except BaseException:  # Ctrl-C has reached it too: it ends what it has started
            process.terminate()
            process.wait(_ENDS_WITHIN)
            raise
    if process.returncode not in (0, 1):
        raise ChaosFailed(f"{part} ended with status {process.returncode}: its output says why")
    return process.returncode == 0, msgspec.Raw(output.strip() if as_json else b"null")
