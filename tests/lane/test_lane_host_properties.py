"""However assignments, doubts, slow endings and stops follow each other, workers do as told last."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lane_checker import check, check_store
from lane_hosts import Starts, host_of
from lane_workloads import counting
from lane_worlds import FakeWorld, Post

from streams.lane.host import LaneHost
from streams.testing.faults import Pause, ScriptedFaults
from streams.testing.loop import SimulatedLoop
from tests.effort import examples

LANES = 3
ROLES = st.sampled_from(("active", "standby", ""))
MEMBERS = st.integers(0, 1)
POINTS = st.sampled_from(("staged", "sent", "committed", "applied", "recovering"))


class Member:
    """A worker: its disk, its lanes, and what membership has told it last."""

    def __init__(self, world: FakeWorld, fatal: list[BaseException], stores: Any = None) -> None:
        self.faults = ScriptedFaults()
        self.stores = stores or world.stores()
        self.cluster = Starts(world.cluster)
        self.host: LaneHost = host_of(world, fatal, self.faults, self.stores, self.cluster)
        self.active: set[int] = set()
        self.standby: set[int] = set()
        self.sure = False
        self.started_when_unsure = 0
        self.pauses: list[Pause] = []


class Hosts(RuleBasedStateMachine):
    """Two workers in a group whose members hear of its decisions at different times, or miss them."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=SimulatedLoop)
        self.world = FakeWorld(self.runner.get_loop())
        self.fatal: list[BaseException] = []
        self.work = counting(self.world.name, settled=True)
        self.posts: list[Post] = []
        self.members: list[Member] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @initialize()
    def begin(self) -> None:
        self.run(self._begin())

    async def _begin(self) -> None:
        await self.world.start(self.work, partitions=LANES, lanes=LANES, fenced_pause=2.0)
        self.members = [Member(self.world, self.fatal) for _ in range(2)]

    @rule(member=MEMBERS, data=st.data(), all_topics=st.booleans())
    def assign(self, member: int, data: st.DataObject, all_topics: bool) -> None:
        """What a member is told; another may own the same lane still, or again."""
        roles = data.draw(
            st.lists(st.sampled_from(("active", "standby", "")), min_size=LANES, max_size=LANES)
        )
        told = self.members[member]
        told.active = {lane for lane, role in enumerate(roles) if role == "active"}
        told.standby = {lane for lane, role in enumerate(roles) if role == "standby"}
        told.sure = True
        self.run(self._assign(told, all_topics=all_topics))

    async def _assign(self, member: Member, *, all_topics: bool = True) -> None:
        sources = self.world.app.sources
        member.host.assign(member.active, member.standby, sources if all_topics else [self.work.source])

    @rule(member=MEMBERS)
    def unsure(self, member: int) -> None:
        told = self.members[member]
        told.sure = False
        self.run(self._unsure(told))

    async def _unsure(self, member: Member) -> None:
        member.host.membership_unsure()
        member.started_when_unsure = member.cluster.started

    @rule(keys=st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=8))
    def produce(self, keys: list[str]) -> None:
        for key in keys:
            self.posts.append(self.world.event(self.work, key, len(self.posts)))
            self.run(self.world.post(self.posts[-1]))

    @rule(member=MEMBERS, point=POINTS)
    def stand_still_soon(self, member: int, point: str) -> None:
        faults = self.members[member].faults
        self.members[member].pauses.append(faults.pause_at(point, nth=faults.reached[point] + 1))

    @rule(member=MEMBERS)
    def go_on(self, member: int) -> None:
        self.run(self._go_on(self.members[member]))

    async def _go_on(self, member: Member) -> None:
        for pause in member.pauses:
            pause.resume()

    @rule(turns=st.integers(1, 60))
    def turns_pass(self, turns: int) -> None:
        self.run(self.world.turns(turns))

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(self.world.clock.advance(seconds))

    @rule(member=MEMBERS)
    def stop_and_start_again(self, member: int) -> None:
        """As in a rolling restart: on the same disk, knowing nothing of what it was assigned."""
        self.run(self._restart(member))

    async def _restart(self, member: int) -> None:
        old = self.members[member]
        await self._go_on(old)
        await old.host.stop()
        assert old.host.lanes == old.host.standbys == {}
        self.members[member] = Member(self.world, self.fatal, old.stores)

    @invariant()
    def no_lane_begins_to_open_without_having_heard_the_latest_assignment(self) -> None:
        for member in self.members:
            assert member.sure or member.cluster.started == member.started_when_unsure

    @invariant()
    def nothing_is_fatal(self) -> None:
        assert self.fatal == []

    def teardown(self) -> None:
        try:
            if self.members:
                self.run(self._finish())
        finally:
            self.run(self.world.close())
            self.runner.close()

    async def _finish(self) -> None:
        """The group has decided for good: everything is open where it belongs, and every row is right."""
        one, other = self.members
        one.active, one.standby, other.active, other.standby = {0, 1}, {2}, {2}, {0, 1}
        for member in self.members:
            await self._go_on(member)
            member.faults._script.clear()
            await self._assign(member)
        for member in self.members:
            await member.host.settled()
            assert set(member.host.lanes) == member.active
            assert set(member.host.standbys) == member.standby
        lanes = [lane for member in self.members for lane in member.host.lanes.values()]
        await self.world.until(lambda: all(lane.state == "open" for lane in lanes))
        await self.world.settled(self.work.source, self.work.output)
        for member in self.members:
            await member.host.stop()
        await check(self.world, self.work, self.posts)
        for member in self.members:
            for lane in member.active:
                await check_store(self.world, lane, member.stores, may_be_empty=True)


Hosts.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestHosts = Hosts.TestCase
