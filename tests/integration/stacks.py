"""The command, as an operator has it, and stacks that do not start."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import streams
from streams.local import StackError, local_stack
from tests.waiting import BOUND


def steadfaust(*arguments: str, cwd: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command, where no application declares anything unless a folder is given."""
    command = [sys.executable, "-c", "from streams.cli.main import main; main()", *arguments]
    env = {**os.environ, "PYTHONPATH": str(Path(streams.__file__).parents[1]), **settings}
    where = cwd or tempfile.gettempdir()
    return subprocess.run(
        command, cwd=where, env=env, capture_output=True, text=True, timeout=BOUND, check=False
    )


def does_not_start(why: str, var: Path, **spec: Any) -> None:
    with pytest.raises(StackError, match=why), local_stack(var, **spec):
        pytest.fail("it started")
