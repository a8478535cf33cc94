"""Perform a fault by the function of its kind, and measure how busy the machine was meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from msgspec import structs

from chaos.faults import brokers, database, edges, failover, machines, unheard, workers
from chaos.faults.ground import Ground
from chaos.rig.kinds import FaultKind, Planned
from chaos.rig.records import Happened
from streams.local.busy_timeout import Used

_MODULES = (workers, machines, unheard, brokers, edges, database, failover)
#: The function of each kind, by its name.
_PERFORM: Mapping[FaultKind, Callable[[Planned, Ground], Awaitable[Happened]]] = {
    kind: vars(module)[kind] for kind in FaultKind for module in _MODULES if kind in vars(module)
}


async def perform(planned: Planned, ground: Ground) -> Happened:
    """Inject a fault and wait until it has healed.

    Raises ChaosFailed when it was not seen to happen, or not to heal.
    """
    slowness = Slowness(lambda: [worker.pid for worker in ground.fleet.alive])
    done = await _PERFORM[planned.kind](planned, ground)
    return structs.replace(done, slowed=round(slowness.factor(), 2))


#: However busy the machine was, a time that has a limit counts as no less than a half.
MOST = 2.0


class Slowness:
    """What the event loops of processes have run and waited since this was made.

    A worker's event loop runs in its main thread, and a stall is that it does not get on: its other threads,
    which often wait for each other's processor, do not count. Processes that have ended do not count any
    more, and new ones count from their start.
    """

    def __init__(self, pids: Callable[[], Iterable[int]], used: Callable[[int], Used] | None = None) -> None:
        self._pids = pids
        self._used = used or used_by_main_thread
        self._before = self._look()

    def factor(self) -> float:
        """How many times longer they took than with a processor of their own, from 1 to `MOST`."""
        ran = waited = 0.0
        for pid, now in self._look().items():
            before = self._before.get(pid, Used(0.0, 0.0))
            ran += max(0.0, now.ran - before.ran)
            waited += max(0.0, now.waited - before.waited)
        return min(MOST, 1 + waited / ran) if ran > 0 else 1.0

    def _look(self) -> Mapping[int, Used]:
        return {pid: self._used(pid) for pid in self._pids()}


def used_by_main_thread(pid: int) -> Used:
    """What the main thread of a process has used until now; nothing where the system does not say, or it has
    ended.
    """
    try:
        running, waiting, *_ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    except OSError:
        return Used(0.0, 0.0)
    return Used(int(running) / 1e9, int(waiting) / 1e9)
