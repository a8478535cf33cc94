"""A worker process under measurement: what its log says and when, and the most memory it took."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from benchmarks.sections import NotMeasured

_SAMPLE_EVERY = 0.05
_LOOK_EVERY = 0.02
_ENDS_WITHIN = 40.0
_IDLE_SHARE = 0.15


class BenchmarkWorker:
    """`faust -A <module> worker`, from entering to leaving a `with`; then it gets SIGTERM, and SIGKILL if
    it does not.

    Attributes:
        started: when the process was started, on the clock of `time.time`.
        peak: the most resident memory so far, in bytes.
    """

    def __init__(self, module: str, settings: Mapping[str, str], log: Path, *, web: bool = False) -> None:
        """`web`: whether it serves its pages."""
        self.log = log
        self.started = 0.0
        self.peak = 0
        self._command = [sys.executable, "-m", "faust", "-A", module, "worker", "-l", "warn"]
        self._command += [] if web else ["--without-web"]
        self._environment = {**os.environ, **settings}
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as out:
            self.started = time.time()
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=out, stderr=out)
        self._observed = psutil.Process(self._process.pid)
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._sampler.join()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _sample(self) -> None:
        with suppress(psutil.NoSuchProcess):  # it was killed on purpose
            while not self._ended.wait(_SAMPLE_EVERY):
                self.peak = max(self.peak, self._observed.memory_info().rss)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far."""
        times = self._observed.cpu_times()
        return float(times.user + times.system)

    @property
    def memory(self) -> int:
        """Its resident memory now, in bytes."""
        return int(self._observed.memory_info().rss)

    def kill(self) -> float:
        """SIGKILL; returns when, on the clock of `time.time`."""
        self._process.kill()
        killed = time.time()
        self._process.wait()
        return killed

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What its log says under these names, in order."""
        found = []
        for line in self.log.read_bytes().splitlines():
            with suppress(ValueError):  # not everything in the log is an event
                event = json.loads(line)
                if isinstance(event, dict) and event.get("event") in names:
                    found.append(event)
        return found

    def must_run(self, what: str) -> None:
        """Raises NotMeasured when the process has ended before `what`."""
        if self._process.poll() is not None:
            raise NotMeasured(f"the worker ended before {what}: see {self.log}")

    async def until(self, reached: Callable[[], bool], what: str, *, within: float) -> None:
        """Wait for something that this process brings about. Raises NotMeasured when it does not."""
        deadline = time.monotonic() + within
        while not reached():
            self.must_run(what)
            if time.monotonic() > deadline:
                raise NotMeasured(f"{what} did not happen within {within:g} s: see {self.log}")
            await asyncio.sleep(_LOOK_EVERY)

    def lanes(self) -> set[int]:
        """Lanes that it was last given, when all of them have opened since; else none."""
        given: set[int] = set()
        opened: set[int] = set()
        for event in self.events("lanes_assigned", "lane_opened"):
            match event:
                case {"event": "lanes_assigned", "active": list(active)}:
                    given = set(active)
                    opened &= given
                case {"lane": int(lane)}:
                    opened.add(lane)
        return given if given == opened else set()

    def last_assigned(self) -> float:
        """When the group last decided on its lanes, on the clock of `time.time`; 0 if it never has."""
        events = self.events("lanes_assigned")
        return datetime.fromisoformat(events[-1]["timestamp"]).timestamp() if events else 0.0

    async def idle(self, *, within: float) -> None:
        """Wait until it has hardly used the processor for a second. Raises NotMeasured when it does not."""
        before, since = self.cpu_seconds, time.monotonic()

        def rests() -> bool:
            nonlocal before, since
            if time.monotonic() - since < 1.0:
                return False
            used, before, since = self.cpu_seconds - before, self.cpu_seconds, time.monotonic()
            return used < _IDLE_SHARE

        await self.until(rests, "it is idle", within=within)

    async def owns(self, lanes: int, *, within: float) -> None:
        """Wait until it was given so many lanes, and all of them are open."""
        await self.until(lambda: len(self.lanes()) == lanes, f"it has {lanes} open lanes", within=within)

    async def lanes_open(self, lanes: int, *, within: float = 600.0) -> list[dict[str, Any]]:
        """Wait until so many lanes have opened; returns their events."""
        await self.until(
            lambda: len(self.events("lane_opened")) >= lanes, f"{lanes} open lanes", within=within
        )
        return self.events("lane_opened")
