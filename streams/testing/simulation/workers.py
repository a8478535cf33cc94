"""Simulated workers: the real host, lanes and standbys on a simulated machine."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from streams.engine.life.host import LaneHost
from streams.engine.life.positions.cuts import Cuts
from streams.engine.life.session import shared_by
from streams.errors import ClusterUnavailable, LayoutMismatch, MembershipLost
from streams.model.application import Application
from streams.model.policy.assignment import Assignment, Member
from streams.model.policy.fitness import Fitness
from streams.ports import Ports
from streams.testing.cluster import FakeCluster
from streams.testing.simulation.group import Group
from streams.testing.simulation.machines import Machine, Network, Process


class Points:
    """The named points of the commit protocol and of openings on one machine, with planned faults."""

    def __init__(self, note: Callable[..., None]) -> None:
        self.reached: Counter[str] = Counter()
        self._note = note
        self._planned: dict[tuple[str, int], Callable[[], None]] = {}

    def plan(self, point: str, nth: int, action: Callable[[], None]) -> None:
        """Call `action` when the point is reached for the nth time from now on."""
        self._planned[point, self.reached[point] + nth] = action

    def call_off(self) -> None:
        """Cancel all planned faults."""
        self._planned.clear()

    async def reach(self, point: str) -> None:
        """Called at each point. Runs the fault that is planned for it."""
        self.reached[point] += 1
        action = self._planned.pop((point, self.reached[point]), None)
        if action is None:
            return
        self._note("at_point", point=point)
        action()
        await asyncio.sleep(0)  # a process that was killed there ends here


#: The same values as in `streams.host`: seconds between fitness checks, and before a worker asks for a
#: rebalance because of missing topics. A worker ends if its identity is taken TAKEN times WITHIN seconds.
FIT_LOOK, REJOIN_AFTER = 5.0, 3.0
TAKEN, WITHIN = 3, 120.0


class SimulatedWorker:
    """One worker process, from its start until it is stopped or killed."""

    def __init__(
        self,
        machine: Machine,
        app: Application,
        cluster: FakeCluster,
        group: Group,
        points: Points,
        fatal: Callable[[SimulatedWorker, BaseException], None],
    ) -> None:
        layout = app.layout
        #: Static member id. With another lane count, it is another member.
        self.name = f"{machine.name}-{layout.lanes}"
        self.machine = machine
        self.app = app
        self.process = machine.process = Process(machine, layout)
        self._group = group
        #: The last assignment.
        self.given = Assignment()
        self._generation = -1
        self._is_sure = False
        self._stores = machine.directory(layout.lanes)
        self._kept = self._stores.kept()
        self.is_unfit = self._asked = False
        self._taken: deque[float] = deque(maxlen=TAKEN)
        self._end_with = fatal
        network = Network(cluster, machine, self.process, points.reach, self._opens)
        ports = Ports(network, self._stores, machine.clock, points)
        self._cuts = Cuts(layout, network)
        self.host = LaneHost(app, ports, self._fatal, shared_by(app, ports, self._cuts))
        self.process.spawn(self._hand_over())

    def _opens(self, transactional_id: str) -> None:
        """Fail if a lane opens while membership is unsure, because it could fence the rightful owner.
        Producers for another lane count are exempt: an opening fences those, too.
        """
        if not self._is_sure and transactional_id.endswith(f"-of-{self.app.layout.lanes}"):
            self._fatal(AssertionError("a lane begins to open while membership is unsure"))

    def _fatal(self, error: BaseException) -> None:
        if self.process.is_alive:
            self._end_with(self, error)

    @property
    def answers(self) -> bool:
        """Whether it sends heartbeats."""
        return self.machine.process is self.process and self.machine.answers

    @property
    def not_its_own(self) -> list[int]:
        """Lanes that it still runs although they are not assigned to it."""
        return sorted(self.host.lanes.keys() - set(self.given.active))

    def claims(self) -> Member:
        """The description of itself that the worker sends when it joins."""
        layout = self.app.layout
        return Member(
            layout.partitions,
            layout.lanes,
            tuple(sorted(self.app.sources)),
            self.given.active,
            self.given.standby if self.given.members else self._kept,
            self._generation,
            self.name,
            self.is_unfit,
        )

    async def look_and_join(self) -> None:
        """Join once the newest lane count is known, as `streams.host.app` does."""
        while True:
            try:
                await self._cuts.look()
            except ClusterUnavailable:
                await self.machine.clock.sleep(1.0)
            else:
                return self._group.join(self)

    def unsure(self) -> None:
        """Tell the host that a rebalance has begun."""
        self.process.spawn(self._hear(False, self.host.membership_unsure))

    def assigned(self, given: Assignment, generation: int) -> None:
        """Give the assignment to the host, or end the worker if it is refused."""
        layout = self.app.layout
        if not given.error and (given.partitions, given.lanes) != (layout.partitions, layout.lanes):
            given = Assignment(error=f"the group has {given.lanes} lanes, this worker {layout.lanes}")
        self.given, self._generation = given, generation
        if given.error:
            self.process.spawn(self._hear(False, lambda: self._fatal(LayoutMismatch(given.error))))
            return
        told = given.active, given.standby, given.topics
        self.process.spawn(self._hear(True, lambda: self.host.assign(*told)))
        if set(self.app.sources) - set(given.topics) and not self._asked:
            self._asked = True
            asyncio.get_running_loop().call_later(REJOIN_AFTER, self._group.rebalance)

    def displaced(self) -> bool:
        """Join again after another process took this identity; end the worker if that happens too often."""
        if not self.answers:
            return not self.process.is_alive
        now = asyncio.get_running_loop().time()
        self._taken.append(now)
        if len(self._taken) == TAKEN and now - self._taken[0] < WITHIN:
            self._fatal(MembershipLost(f"another process has the identity {self.name}"))
        else:
            self._group.join(self)
        return True

    async def _hand_over(self) -> None:
        """Hand lanes to other workers while the machine is unfit, as `streams.host.handover` does."""
        fitness, clock, loop = Fitness(), self.machine.clock, asyncio.get_running_loop()
        while True:
            await clock.sleep(FIT_LOOK)
            changed = fitness.look(
                waited=self.host.waited_for_machine(),
                others=len(self.given.members) > 1,
                monotonic=loop.time(),
                wall=clock.now(),
            )
            if changed:
                self.is_unfit = not fitness.fit
                self._group.note("unfit" if self.is_unfit else "fit", machine=self.name)
                self._group.rebalance()

    async def _hear(self, is_sure: bool, what: Callable[[], Any]) -> None:  # noqa: FBT001 - private
        self._is_sure = is_sure
        what()

    async def stop(self) -> None:
        """Stop as on SIGTERM: commits under way may finish."""
        await self.process.spawn(self.host.stop())
        self.process.kill()
        if self.machine.process is self.process:
            self.machine.process = None

    def kill(self, *, lose_batches: int = 0) -> None:
        """Kill the worker, as SIGKILL or a power failure does."""
        self.machine.kill()
        for lane in [*self.host.lanes, *self.host.standbys]:
            self._stores.crash(lane, lose_batches=lose_batches)
