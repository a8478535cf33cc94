"""The orders API as a process of its own, for tests, benchmarks and the demo."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from streams.errors import SteadfaustError

_PROJECT = Path(__file__).parents[2]
_ENDS_WITHIN = 15.0
_SAYS = "orders API: "


class ApiDidNotStart(SteadfaustError):
    """The process has ended without saying where it serves."""


class ApiProcess:
    """`python -m agents.api` on a free port, while it is entered; its log goes to a file. The environment is
    all that it gets.

    Attributes:
        url: where it serves.
        process: the process.
    """

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        self._environment = {**environment, "PORT": "0"}
        self.url = ""
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agents.api"],
                cwd=_PROJECT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
        except BaseException:  # Ctrl-C, too
            self.end()
            raise
        if not line.startswith(_SAYS):
            self.end()
            raise ApiDidNotStart(f"the orders API did not start: see {self._log}")
        self.url = line.removeprefix(_SAYS).split(",")[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> int:
        """Tell it to end, and wait until it has; returns its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()

    def kill(self) -> None:
        """SIGKILL, and wait."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
