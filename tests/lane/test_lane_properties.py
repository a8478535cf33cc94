"""Whatever happens in whatever order, nothing is lost, nothing is doubled, and the rows are right."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lane_checker import check, check_store, counts
from lane_idle import until_idle
from lane_workloads import Workload, counting
from lane_worlds import FakeWorld, Post, Running

from streams.ports import Stores
from streams.testing.broker import Fault
from streams.testing.faults import LaneKilled, ScriptedFaults
from streams.testing.loop import SimulatedLoop
from tests.effort import examples

KEYS = st.sampled_from("abcdefg")
POINTS = st.sampled_from(("staged", "begun", "sent", "offsets_sent", "committed", "applied", "recovering"))
FAULTS = st.sampled_from([fault for fault in Fault if fault is not Fault.FETCH_DELAYED])
LANES = st.integers(0, 1)


class Worker:
    """One machine's lane of a number: its disk, and the lane that runs on it, if any."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.faults = ScriptedFaults()
        self.running: Running | None = None


class Lanes(RuleBasedStateMachine):
    """Two lanes, each with two machines that may run it at the same time, against a dictionary."""

    lane_options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=SimulatedLoop)
        self.world = FakeWorld(self.runner.get_loop())
        self.posts: dict[str, Post] = {}
        self.work = self.workload()
        self.workers: dict[tuple[int, int], Worker] = {}

    def workload(self) -> Workload:
        return counting(self.world.name, tallied=True, settled=True)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @initialize(max_batch=st.sampled_from([3, 50, 1]), max_backlog=st.sampled_from([200, 4]))
    def begin(self, max_batch: int, max_backlog: int) -> None:
        self.run(
            self.world.start(
                self.work,
                partitions=4,
                lanes=2,
                max_batch=max_batch,
                max_backlog=max_backlog,
                fenced_pause=2.0,
                **self.lane_options,
            )
        )
        self.workers = {
            (lane, machine): Worker(self.world.stores()) for lane in range(2) for machine in range(2)
        }
        self.produce(list("abcdefg"))
        self.open(0, 0)
        self.open(1, 0)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=12))
    def produce(self, keys: list[str]) -> None:
        for key in keys:
            post = self.world.event(self.work, key, len(self.posts))
            self.posts[dict(post.headers)["ce_id"].decode()] = post
            self.run(self.world.post(post))

    @precondition(lambda self: self.posts)
    @rule(data=st.data())
    def produce_again(self, data: st.DataObject) -> None:
        post = self.posts[data.draw(st.sampled_from(sorted(self.posts)))]
        away = data.draw(st.integers(0, 3))
        self.run(self.world.post(post._replace(partition=(post.partition + away) % 4)))

    @rule(lane=LANES, machine=st.integers(0, 1))
    def open(self, lane: int, machine: int) -> None:
        worker = self.workers[lane, machine]
        if worker.running is None or worker.running.task.done():
            self.run(self._open(lane, worker))

    async def _open(self, lane: int, worker: Worker) -> None:
        worker.running = self.world.lane(lane, stores=worker.stores, faults=worker.faults)
        worker.running.may_fail = True

    @rule(turns=st.integers(1, 40))
    def go_on(self, turns: int) -> None:
        self.run(self.world.turns(turns))

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(self.world.clock.advance(seconds))

    @rule(lane=LANES, machine=st.integers(0, 1), point=POINTS, later=st.integers(1, 3))
    def kill_soon(self, lane: int, machine: int, point: str, later: int) -> None:
        faults = self.workers[lane, machine].faults
        faults.kill_at(point, nth=faults.reached[point] + later)

    @rule(lane=LANES, machine=st.integers(0, 1), lose=st.integers(0, 3), wipe=st.booleans())
    def power_fails(self, lane: int, machine: int, lose: int, wipe: bool) -> None:
        """At any await whatever: the lane is gone at once, and perhaps the last writes, or all of them."""
        worker = self.workers[lane, machine]
        if worker.running is not None:
            self.run(self._cancel(worker.running))
        worker.stores.crash(lane, lose_batches=lose)
        if wipe:
            worker.stores.destroy(lane)

    async def _cancel(self, running: Running) -> None:
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)

    @rule(fault=FAULTS, skip=st.integers(0, 2))
    def broker_fails(self, fault: Fault, skip: int) -> None:
        self.world.cluster.inject(fault, skip=skip)

    @rule()
    def compact(self) -> None:
        for topic, table in self.world.app.changelogs.items():
            if table != "inbox":
                self.world.cluster.compact(topic)

    @invariant()
    def no_lane_ends_for_another_reason_than_the_kill(self) -> None:
        for worker in self.workers.values():
            if worker.running is not None and worker.running.task.done():
                task = worker.running.task
                assert task.cancelled() or isinstance(task.exception(), LaneKilled)
            if worker.running is not None:
                assert worker.running.lane.state != "quarantined"

    def teardown(self) -> None:
        try:
            if self.workers:
                self.run(self._finish())
        finally:
            self.run(self.world.close())
            self.runner.close()

    async def _finish(self) -> None:
        world = self.world
        for worker in self.workers.values():
            if worker.running is not None:
                await self._cancel(worker.running)
            worker.faults = ScriptedFaults()
        world.cluster._faults.clear()
        for lane in range(2):
            await self._open(lane, self.workers[lane, 0])
        await self.until_done()
        for lane in range(2):
            running = self.workers[lane, 0].running
            assert running is not None
            await until_idle(world, running.lane)
            await running.stop()
        await self.check()
        for lane in range(2):
            await check_store(world, lane, self.workers[lane, 0].stores, may_be_empty=True)

    async def until_done(self) -> None:
        """Wait until nothing is left to handle."""
        world, work = self.world, self.work
        await world.settled(work.source, work.output)
        # What was sent on, or is passed on by what was settled now, is settled as well.
        await world.settled(work.source, work.output)

    async def check(self) -> None:
        world, work, posts = self.world, self.work, list(self.posts.values())
        await check(world, work, posts)
        await check(world, work, posts, table="tallies")
        assert await counts(world, "settled") == await counts(world)


Lanes.TestCase.settings = settings(
    max_examples=examples(120),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLanes = Lanes.TestCase
