"""The worker processes of a contestant: hit as the schedule says, and started again whenever they end."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import psutil

from chaos.counting.contestants import Contestant
from chaos.counting.schedule import FROZEN, WORKERS, ScheduledFault, WorkerFault
from chaos.rig.fleet import FleetWorker
from chaos.rig.records import Happened

_LOOK_EVERY = 0.1


class Supervised:
    """Keeps a contestant's workers running; `crashes` counts those that ended although nobody told them to,
    `hung` those that did not end when they were told to.
    """

    def __init__(self, contestant: Contestant, app_id: str, topic: str, bootstrap: str, var: Path) -> None:
        self.crashes = 0
        self.hung = 0
        self._contestant = contestant
        self._app_id = app_id
        self._topic = topic
        self._bootstrap = bootstrap
        self._var = var
        self._running: list[FleetWorker] = []
        self._started = 0

    def start(self) -> None:
        """Start them all."""
        self._running = [self._start(number) for number in range(WORKERS)]

    @property
    def all_alive(self) -> bool:
        """Whether none has ended."""
        return all(worker.alive for worker in self._running)

    async def keep_running(self) -> NoReturn:
        """Start again what crashed, until cancelled."""
        while True:
            for number, worker in enumerate(self._running):
                if not worker.alive and not worker.told:
                    self.crashes += 1
                    self._running[number] = self._start(number)
            await asyncio.sleep(_LOOK_EVERY)

    async def hit(self, due: ScheduledFault) -> Happened:
        """Do what is due; returns when the worker runs again."""
        worker = self._running[due.worker]
        began = time.time()
        match due.fault:
            case WorkerFault.KILL:
                worker.kill(due.fault)
                confirmed = "it has gone" if worker.exit_code == -9 else ""
            case WorkerFault.FREEZE:
                confirmed = await _freeze(worker)
            case WorkerFault.END:
                await self._end(worker, due.fault)
                took = time.time() - began
                confirmed = "did not end, was killed" if worker.hung else f"it ended within {took:.1f} s"
        if not worker.alive:
            self._running[due.worker] = self._start(due.worker)
        return Happened(
            kind=due.fault,
            target=f"worker {due.worker}",
            began=began,
            ended=time.time(),
            confirmed=confirmed,
        )

    async def stop(self) -> None:
        """End them all."""
        await asyncio.gather(*(self._end(worker, "the run is over") for worker in self._running))

    def kill(self) -> None:
        """Leave nothing behind."""
        for worker in self._running:
            if worker.alive:
                worker.kill("the run was left")

    async def _end(self, worker: FleetWorker, why: str) -> None:
        await worker.stop(why)
        self.hung += worker.hung

    def _start(self, number: int) -> FleetWorker:
        log = self._var / "log" / self._contestant.name
        for directory in (log, self._var / "workers"):
            directory.mkdir(parents=True, exist_ok=True)
        self._started += 1
        environment = self._contestant.environment(
            self._app_id, self._topic, self._bootstrap, self._var, number
        )
        faust = [sys.executable, "-m", "faust", "-A", self._contestant.module]
        return FleetWorker(
            number,
            log / f"worker-{number}.{self._started}.log",
            [*faust, "worker", "-l", "warn", "--without-web"],
            {**os.environ, **environment},
        )


async def _freeze(worker: FleetWorker) -> str:
    """Confirmed when it was standing still at the end, too."""
    began = time.monotonic()
    worker.freeze()
    await asyncio.sleep(FROZEN)
    stood_still = psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED
    worker.thaw()
    return f"it stood still for {time.monotonic() - began:.1f} s" if stood_still else ""
