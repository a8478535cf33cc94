"""Faults inside a worker's process: scripted points, failing handlers, and its clock.

A script arms a worker that runs, so that the fault hits one that no restart has disturbed. The file that
`CHAOS_FAILING` names has the chance with which handlers fail, before their work or after it; the handlers
know nothing of it. The file that `CHAOS_CLOCK` names has by how many seconds its clock is ahead. Each holds
for as long as its file is there.
"""

from __future__ import annotations

import copy
import os
import random
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from streams.errors import TransientError
from streams.kafka.transactions import producer
from streams.model.choreography import AnyHandler, Choreography, Route
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
    """The faults of this process; none ever without `CHAOS_ARMED` in its environment."""
    script = os.environ.get(ARMED)
    return ArmedFaults(Path(script)) if script else NoFaults()


#: The environment variable that names the file; while it is there, handlers fail with the chance it says.
FAILING = "CHAOS_FAILING"
_LOOK_EVERY = 0.1

Fail = Callable[[], None]


def failing_file(var: Path) -> Path:
    """The file of a run."""
    return var / "failing"


class HandlerFault(TransientError):
    """A fault of the run."""


class Failing:
    """Raises HandlerFault now and then while the file is there."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._chance = random.Random(str(file))
        self._rate = 0.0
        self._looked = 0.0

    def __call__(self) -> None:
        """To be called where a handler may fail."""
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY:
            self._looked = now
            self._rate = float(self._file.read_text()) if self._file.exists() else 0.0
        if self._rate and self._chance.random() < self._rate:
            raise HandlerFault("the run makes handlers fail")


def with_failures(wiring: Choreography) -> Choreography:
    """The same wiring, of which every handler fails while the file is there; unchanged without
    `CHAOS_FAILING` in the environment.
    """
    file = os.environ.get(FAILING)
    return wrapped(wiring, Failing(Path(file))) if file else wiring


def wrapped(wiring: Choreography, fail: Fail) -> Choreography:
    """The same wiring, of which every handler may fail before its work and after it."""
    handlers = {handler.name: _wrapped(handler, fail) for handler in wiring.handlers()}
    return Choreography(
        *(
            Route(route.message, tuple(handlers[each.name] for each in route.handlers), route.inbox)
            for route in wiring.routes.values()
        )
    )


def _wrapped(handler: AnyHandler, fail: Fail) -> AnyHandler:
    function = handler.function
    if handler.is_async:

        @wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            fail()
            outcome = await function(*args, **kwargs)
            fail()
            return outcome

    else:

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            fail()
            outcome = function(*args, **kwargs)
            fail()
            return outcome

    made = copy.copy(handler)
    made.function = call
    return made


#: The environment variable that names the file.
CLOCK = "CHAOS_CLOCK"


def clock_of(var: Path, worker: str) -> Path:
    """Where a worker looks for how wrong its clock is."""
    return var / "clocks" / worker


class HostClock:
    """The clock of this process."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def time(self) -> float:
        """Replacement for `time` in the module with which producers stamp records."""
        try:
            return time.time() + float(self._file.read_text())
        except FileNotFoundError:
            return time.time()


def install_clock() -> None:
    """Let this process have such a clock, if its environment has `CHAOS_CLOCK`."""
    if file := os.environ.get(CLOCK):
        vars(producer)["time"] = HostClock(Path(file))  # all that it asks of the module
