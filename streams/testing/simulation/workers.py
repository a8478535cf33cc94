"""Workers of a simulated world: the real host, lanes and standbys on a machine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from streams.lane.host import LaneHost
from streams.model.application import Application
from streams.policy.assignment import Assignment, Member
from streams.testing.cluster import FakeCluster
from streams.testing.simulation.group import Group
from streams.testing.simulation.machines import Machine, Network, Process


class Points:
    """The labelled points of the commit protocol on one machine: what happens at which reach of one."""

    def __init__(self, note: Callable[..., None]) -> None:
        self.reached: Counter[str] = Counter()
        self._note = note
        self._planned: dict[tuple[str, int], Callable[[], None]] = {}

    def plan(self, point: str, nth: int, action: Callable[[], None]) -> None:
        """Do something at the nth reach from now on."""
        self._planned[point, self.reached[point] + nth] = action

    def call_off(self) -> None:
        """What has not happened does not happen any more."""
        self._planned.clear()

    async def reach(self, point: str) -> None:
        """Called by lanes at each point."""
        self.reached[point] += 1
        action = self._planned.pop((point, self.reached[point]), None)
        if action is None:
            return
        self._note("at_point", point=point)
        action()
        await asyncio.sleep(0)  # a process that was killed there ends here


class SimulatedWorker:
    """One worker process, from its start until it is stopped or killed."""

    def __init__(
        self,
        machine: Machine,
        app: Application,
        cluster: FakeCluster,
        group: Group,
        points: Points,
        fatal: Callable[[str, BaseException], None],
    ) -> None:
        self.machine = machine
        self.app = app
        self.process = machine.process = Process(machine)
        self._group = group
        self._given = Assignment()
        self._generation = -1
        self.host = LaneHost(
            app,
            cluster=Network(cluster, machine, self.process),
            stores=machine.stores,
            clock=machine.clock,
            faults=points,
            on_fatal=lambda error: fatal(machine.name, error) if self.process.is_alive else None,
        )

    @property
    def name(self) -> str:
        """Its static member id: that of its machine."""
        return self.machine.name

    @property
    def answers(self) -> bool:
        """Whether it heartbeats."""
        return self.machine.process is self.process and self.machine.answers

    def claims(self) -> Member:
        """What it says of itself when it joins."""
        layout = self.app.layout
        return Member(
            layout.partitions,
            layout.lanes,
            tuple(sorted(self.app.sources)),
            self._given.active,
            self._given.standby,
            self._generation,
            self.name,
        )

    def unsure(self) -> None:
        """A rebalance has begun."""
        self.process.spawn(self._hear(self.host.membership_unsure))

    def assigned(self, given: Assignment, generation: int) -> None:
        """The group has decided."""
        self._given, self._generation = given, generation
        self.process.spawn(self._hear(lambda: self.host.assign(given.active, given.standby, given.topics)))
        if set(self.app.sources) - set(given.topics):
            self._group.rebalance()

    async def _hear(self, what: Callable[[], Any]) -> None:
        what()

    async def stop(self) -> None:
        """Stop as on SIGTERM: commits under way may end."""
        await self.process.spawn(self.host.stop())
        self.process.kill()
        if self.machine.process is self.process:
            self.machine.process = None

    def kill(self, *, lose_batches: int = 0) -> None:
        """Kill it, as a SIGKILL or a power failure does."""
        self.machine.kill([*self.host.lanes, *self.host.standbys], lose_batches=lose_batches)
