"""Faults at labelled points of the commit protocol, scripted by a test or by the environment of a worker."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from streams.errors import OutcomeUnknown, ProcessKilled, SettingsError
from streams.system import NoFaults

SCRIPT = "STEADFAUST_FAULTS"
LOG = "STEADFAUST_FAULTS_LOG"


class LaneKilled(ProcessKilled):
    """Ends a worker that a test runs inside its own process. `except Exception` does not catch it."""


class Reached(NamedTuple):
    """The `nth` time that a fault point is reached, from 1."""

    point: str
    nth: int


@dataclass(slots=True)
class Pause:
    """A fault point that blocks a lane until the test calls `resume`."""

    _reached: asyncio.Event = field(default_factory=asyncio.Event)
    _go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def reached(self, timeout: float = 120.0) -> None:
        """Wait until the lane has reached the point. Raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            await self._reached.wait()

    def resume(self) -> None:
        """Let the lane continue."""
        self._go_on.set()

    async def hold(self) -> None:
        """Block the calling lane until `resume`."""
        self._reached.set()
        await self._go_on.wait()


class ScriptedFaults:
    """Causes faults when a point is reached for the nth time, and records those that happened."""

    def __init__(self) -> None:
        self._script: dict[Reached, Exception | type[LaneKilled] | Pause] = {}
        self.reached: Counter[str] = Counter()
        self.happened: list[Reached] = []

    def raise_at(self, point: str, nth: int = 1, error: Exception | None = None) -> None:
        """Raise an error at the point: `error`, or by default OutcomeUnknown."""
        self._script[Reached(point, nth)] = error or OutcomeUnknown(f"scripted at {point}, {nth}")

    def kill_at(self, point: str, nth: int = 1) -> None:
        """End the lane there as a SIGKILL would, with LaneKilled."""
        self._script[Reached(point, nth)] = LaneKilled

    def pause_at(self, point: str, nth: int = 1) -> Pause:
        """Hold the lane there, as a SIGSTOP would."""
        pause = self._script[Reached(point, nth)] = Pause()
        return pause

    def call_off(self) -> None:
        """Drop the faults that have not happened."""
        self._script.clear()

    @property
    def pending(self) -> list[Reached]:
        """Faults that have not happened yet. Tests should assert at their end that this is empty."""
        return list(self._script)

    async def reach(self, point: str) -> None:
        """Called by the lane at each point."""
        self.reached[point] += 1
        here = Reached(point, self.reached[point])
        fault = self._script.pop(here, None)
        if fault is None:
            return
        self.happened.append(here)
        if isinstance(fault, Pause):
            await fault.hold()
        elif isinstance(fault, Exception):
            raise fault
        else:
            raise fault(f"killed at {point}, {here.nth}")


class ProcessFaults:
    """Applies scripted faults to this process: kill (SIGKILL), stop (SIGSTOP) or raise (OutcomeUnknown).

    It appends a line `point:nth:action pid` to `log` before a fault, because the process may not survive.
    """

    def __init__(self, script: Mapping[Reached, str], log: Path | None) -> None:
        self._script = dict(script)
        self._log = log
        self._reached: Counter[str] = Counter()

    async def reach(self, point: str) -> None:
        """Called by the lane at each point."""
        self._reached[point] += 1
        here = Reached(point, self._reached[point])
        action = self._script.pop(here, None)
        if action is None:
            return
        if self._log is not None:
            with self._log.open("a") as log:
                log.write(f"{point}:{here.nth}:{action} {os.getpid()}\n")
        _ACTIONS[action](here)


def faults_from_environment(environment: Mapping[str, str] | None = None) -> ProcessFaults | NoFaults:
    """Read the faults of a real worker, such as `STEADFAUST_FAULTS="committed:3:kill,sent:1:raise"`. Each
    part is a point, the count at which it acts (over all lanes of the process), and kill, stop or raise. They
    are logged to the file `STEADFAUST_FAULTS_LOG`. Raises SettingsError for an invalid script.
    """
    environment = os.environ if environment is None else environment
    text = environment.get(SCRIPT, "")
    if not text:
        return NoFaults()
    log = environment.get(LOG)
    return ProcessFaults(dict(_parse(part) for part in text.split(",")), Path(log) if log else None)


def _parse(part: str) -> tuple[Reached, str]:
    point, _, rest = part.strip().partition(":")
    nth, _, action = rest.partition(":")
    if not point or not nth.isdecimal() or int(nth) < 1 or action not in _ACTIONS:
        raise SettingsError(
            f"{SCRIPT} has {part!r}: write point:nth:action, action one of {', '.join(_ACTIONS)}"
        )
    return Reached(point, int(nth)), action


def _kill(_: Reached) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(_: Reached) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise(here: Reached) -> None:
    raise OutcomeUnknown(f"scripted at {here.point}, {here.nth}")


_ACTIONS: dict[str, Callable[[Reached], None]] = {"kill": _kill, "stop": _stop, "raise": _raise}
