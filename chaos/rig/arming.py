"""Arming a worker while it runs, so that the fault it is armed with hits one that nobody has disturbed."""

from __future__ import annotations

import os
from pathlib import Path

from streams.ports import Faults
from streams.system import NoFaults
from streams.testing.faults import LOG, SCRIPT, faults_from_environment

#: The environment variable that names the file in which a worker finds its script.
ARMED = "CHAOS_ARMED"


def script_of(var: Path, worker: str) -> Path:
    """Where a worker looks for its script."""
    return var / "armed" / worker


def log_of(script: Path) -> Path:
    """Where it writes what it is about to do: a line `point:nth:action pid`."""
    return script.with_suffix(".log")


def arm(script: Path, text: str) -> None:
    """Write a file that a worker looks for, such as a script `sent:3:kill`: its reaches count from when the
    worker has found it. What the file says holds until the file is removed.
    """
    script.parent.mkdir(parents=True, exist_ok=True)
    written = script.with_suffix(".new")
    written.write_text(text)
    written.replace(script)  # at once: the worker never reads half of it


class ArmedFaults:
    """The faults of a worker that may be armed at any time; until then, none."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self._faults: Faults | None = None

    async def reach(self, point: str) -> None:
        """Called by the lane at each point."""
        if self._script.exists():
            text = self._script.read_text()
            self._script.unlink()
            self._faults = faults_from_environment({SCRIPT: text, LOG: str(log_of(self._script))})
        if self._faults is not None:
            await self._faults.reach(point)


def armed_faults() -> Faults:
    """The faults of this process; none ever, when it was not told where to look."""
    script = os.environ.get(ARMED)
    return ArmedFaults(Path(script)) if script else NoFaults()
