"""The worker processes of a run: each started in a slot of our choice, signalled, and followed by its log."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from chaos.rig.failing_disk import FailingDisk
from chaos.rig.processes import ChildProcess
from chaos.rig.waiting import until

WORKER = "chaos.rig.worker"
_SLOT_TAKEN_WITHIN = 60.0


class FleetWorker(ChildProcess):
    """A worker process.

    Attributes:
        slot: the slot that it holds; a later worker of the same slot has its directory and its member id.
    """

    def __init__(self, slot: int, log: Path, command: list[str], environment: Mapping[str, str]) -> None:
        super().__init__(worker_name(slot), log, command, environment)
        self.slot = slot

    @property
    def lanes(self) -> frozenset[int]:
        """The lanes it was last assigned, as far as its log tells."""
        return self.log.assigned if self.alive else frozenset()

    @property
    def open_lanes(self) -> frozenset[int]:
        """Those of its lanes that are open."""
        return self.log.opened if self.alive else frozenset()


class Fleet:
    """Starts workers in slots, and ends all of them when left.

    A worker takes the lowest free slot, so the fleet itself holds the locks of those that are to stay free.

    Attributes:
        workers: all that were ever started, oldest first.
        settings: the environment, beside ours, of workers that start from now on.
    """

    def __init__(
        self,
        var: Path,
        settings: Mapping[str, str],
        *,
        slots: int,
        by_slot: Mapping[int, Mapping[str, str]] | None = None,
        module: str = WORKER,
    ) -> None:
        """`settings` are the workers' environment beside ours and must name STEADFAUST_APP_ID, `by_slot` what
        differs, `module` is where Faust finds the application.
        """
        self.workers: list[FleetWorker] = []
        self._log = var / "log"
        self._slots = _slots_of(var, settings["STEADFAUST_APP_ID"])
        self.settings = {**settings, "STEADFAUST_VAR": str(var), "STEADFAUST_WEB_PORT": "0"}
        self._by_slot = dict(by_slot or {})
        self._module = module
        self._kept: dict[int, IO[str]] = {}
        self._number_of_slots = slots
        self._starting = asyncio.Lock()

    async def start(self, slot: int, *, module: str | None = None, **environment: str) -> FleetWorker:
        """Start a worker in a slot that is free; returns when it holds it. Its lanes open later.

        Raises ChaosFailed when it did not take the slot.
        """
        async with self._starting:  # two at once could take each other's
            self._keep_slots_but(slot)
            self._log.mkdir(parents=True, exist_ok=True)
            number = sum(worker.slot == slot for worker in self.workers)
            worker = FleetWorker(
                slot,
                self._log / f"{worker_name(slot)}.{number}.log",
                [sys.executable, "-m", "faust", "-A", module or self._module, "worker", "-l", "warn"],
                {**os.environ, **self.settings, **self._by_slot.get(slot, {}), **environment},
            )
            self.workers.append(worker)
            await until(
                lambda: not worker.alive or self._holder(slot) == worker.pid,
                f"{worker.name} takes its slot: see {worker.log.path}",
                within=_SLOT_TAKEN_WITHIN,
            )
            return worker

    def in_slot(self, slot: int) -> FleetWorker | None:
        """The worker that lives in this slot; None: the slot is empty."""
        return next((worker for worker in self.alive if worker.slot == slot), None)

    @property
    def alive(self) -> list[FleetWorker]:
        """Workers that have not ended."""
        return [worker for worker in self.workers if worker.alive]

    def unexpected(self) -> list[FleetWorker]:
        """Workers that ended by themselves."""
        return [worker for worker in self.workers if not worker.alive and not worker.expected]

    def wipe(self, slot: int) -> int:
        """Empty the local stores of a slot whose worker has ended; returns how many lanes' it held."""
        stores = [lane for lanes in self._directory(slot).glob("*-lanes") for lane in lanes.iterdir()]
        for lane in stores:
            shutil.rmtree(lane)
        return len(stores)

    def shared(self, lanes: int) -> bool:
        """Whether all lanes are open, each with one owner, and every worker alive has some."""
        owned = [lane for worker in self.alive for lane in worker.lanes]
        open_everywhere = all(worker.lanes and worker.lanes == worker.open_lanes for worker in self.alive)
        return open_everywhere and sorted(owned) == list(range(lanes))

    async def stop_all(self, why: str) -> None:
        """SIGTERM all, and wait until all have ended."""
        await asyncio.gather(*(worker.stop(why) for worker in self.alive))

    def _directory(self, slot: int) -> Path:
        return self._slots / _directory_name(slot)

    def _holder(self, slot: int) -> int:
        """The pid that the slot's lock was last taken by; 0: none yet."""
        lock = self._directory(slot) / "lock"
        text = lock.read_text() if lock.exists() else ""
        return int(text) if text else 0

    def _keep_slots_but(self, wanted: int) -> None:
        for slot in range(self._number_of_slots):
            if slot == wanted or slot in self._kept:
                continue
            self._directory(slot).mkdir(parents=True, exist_ok=True)
            lock = (self._directory(slot) / "lock").open("a+")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # a worker's
                lock.close()
            else:
                self._kept[slot] = lock
        if wanted in self._kept:
            self._kept.pop(wanted).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.alive:
            worker.kill("the run was left")
        for lock in self._kept.values():
            lock.close()
        self._kept.clear()


def worker_name(slot: int) -> str:
    """What the worker of a slot is called everywhere, `worker-0` first."""
    return f"worker-{slot}"


def disk_of(var: Path, app_id: str, slot: int) -> FailingDisk:
    """The disk of the worker in a slot. Raises ChaosFailed where there is no C compiler."""
    return FailingDisk(var / "disks" / worker_name(slot), _slots_of(var, app_id) / _directory_name(slot))


def _slots_of(var: Path, app_id: str) -> Path:
    return var / "workers" / app_id


def _directory_name(slot: int) -> str:
    return f"slot-{slot}"
