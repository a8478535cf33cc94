"""What faults are injected into, and what they have in common."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.load.load import Load
from chaos.rig.brokers import BrokerAdmin
from chaos.rig.edge import Edge
from chaos.rig.fleet import Fleet, FleetWorker
from chaos.rig.kinds import LANES_AFTER, Planned
from chaos.rig.network import ClientNetwork
from chaos.rig.records import Happened
from chaos.rig.waiting import ChaosFailed, until
from demo.worker_log import Event
from streams.local import Stack
from streams.model.layout import Layout

#: Bounds, in seconds. They tell a hang from slowness, no more: the checker judges stalls.
OPEN_WITHIN = 120.0
HEALS_WITHIN = 180.0
#: How long a fault may wait for a first effect.
MEETS_WITHIN = 40.0


@dataclass
class Ground:
    """The parts of a run."""

    var: Path
    layout: Layout
    fleet: Fleet
    brokers: BrokerAdmin
    network: ClientNetwork
    stack: Stack
    load: Load
    edge: Edge

    def worker(self, planned: Planned) -> FleetWorker:
        """The worker of the plan's slot. Raises ChaosFailed when the slot is empty."""
        found = None if planned.slot is None else self.fleet.in_slot(planned.slot)
        if found is None:
            raise ChaosFailed(f"{planned.kind}: slot {planned.slot} has no worker")
        return found

    def change_lanes(self) -> int:
        """Workers that start from now on have another number of lanes; returns how many."""
        self.layout = replace(self.layout, lanes=LANES_AFTER)
        self.brokers.layout = self.layout
        self.fleet.settings["STEADFAUST_LANES"] = str(LANES_AFTER)
        return LANES_AFTER

    async def calm(self) -> None:
        """Wait until nothing of an earlier fault is left. Raises ChaosFailed."""
        await until(
            lambda: self.fleet.shared(self.layout.lanes),
            f"all lanes are open, each with one owner: see {self.var / 'log'}",
            within=HEALS_WITHIN,
        )
        await self.brokers.until_in_sync(within=HEALS_WITHIN)

    def failures(self, error: type[Exception]) -> Callable[[], list[Event]]:
        """Asks for the attempts that have failed with this error from now on, in workers that live now."""
        marks = [(worker, worker.log.mark()) for worker in self.fleet.alive]

        def failed() -> list[Event]:
            return [
                event
                for worker, mark in marks
                for event in worker.log.events("handler_failed", mark)
                if event.get("error", "").startswith(f"{error.__name__}:")
            ]

        return failed

    async def until_open(self, worker: FleetWorker) -> None:
        """Wait until a worker has lanes and all of them are open. Raises ChaosFailed."""
        await until(
            lambda: worker.lanes and worker.lanes == worker.open_lanes,
            f"{worker.name} has opened lanes: see {worker.log.path}",
            within=OPEN_WITHIN,
        )

    async def until_taken_over(self, lanes: Collection[int], owner: FleetWorker) -> list[str]:
        """Wait until others have opened lanes of this owner; returns their names. Raises ChaosFailed."""

        def others() -> list[FleetWorker]:
            return [worker for worker in self.fleet.alive if worker is not owner]

        await until(
            lambda: set(lanes) <= {lane for worker in others() for lane in worker.open_lanes},
            f"others have opened the lanes {sorted(lanes)} of {owner.name}",
            within=OPEN_WITHIN,
        )
        return [worker.name for worker in others() if worker.open_lanes & set(lanes)]


@asynccontextmanager
async def lasting(seconds: float) -> AsyncIterator[None]:
    """At least so long, and until what is inside has been seen."""
    ends = time.monotonic() + seconds
    yield
    await asyncio.sleep(max(0.0, ends - time.monotonic()))


def happened(planned: Planned, target: str, began: float, confirmed: str, *, heals: bool = True) -> Happened:
    """The record of a fault that has just healed, or that never does."""
    ended = time.time() if heals else None
    return Happened(kind=planned.kind, target=target, began=began, ended=ended, confirmed=confirmed)


def told_of_failures(met: Collection[Event], began: float) -> str:
    """What confirms a fault that lets handlers fail."""
    handlers = {event["handler"] for event in met}
    later = sum(event.get("decision") == "Later" for event in met)
    return (
        f"{len(met)} failures of {len(handlers)} handlers in {time.time() - began:.1f} s, {later} postponed"
    )


def named(lanes: Collection[int]) -> str:
    """Lanes in a sentence."""
    numbers = ", ".join(map(str, sorted(lanes)))
    return f"lane {numbers}" if len(lanes) == 1 else f"lanes {numbers}"
