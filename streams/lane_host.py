"""The lanes and standbys of one worker, following what membership says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog

from streams.application import Application
from streams.errors import PositionLost, SteadfaustError
from streams.lane import Lane, LaneState
from streams.ports import Clock, Cluster, Faults, Stores
from streams.standby import Standby

log = structlog.get_logger(__name__)

#: A lane with work that has committed nothing for this long is stuck, in seconds.
STUCK_AFTER = 30.0
#: Beyond a commit's own bound: how long closing connections and stores may take, in seconds.
CLOSE_TIMEOUT = 5.0


class LaneHost:
    """Starts and stops lanes as they are assigned.

    A lane that stays assigned goes on through the rebalance: were another worker its owner meanwhile, that
    one has fenced it, and the next commit says so.
    """

    def __init__(
        self,
        app: Application,
        *,
        cluster: Cluster,
        stores: Stores,
        clock: Clock,
        faults: Faults,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`on_fatal` is called when a lane ends with an error for which the worker must stop."""
        self.lanes: dict[int, Lane] = {}
        self.standbys: dict[int, Standby] = {}
        self._app = app
        self._cluster = cluster
        self._stores = stores
        self._clock = clock
        self._faults = faults
        self._on_fatal = on_fatal
        self._tasks: dict[Lane | Standby, asyncio.Task[None]] = {}
        self._member = asyncio.Event()
        self._lock = asyncio.Lock()

    def membership_unsure(self) -> None:
        """A rebalance has begun: open lanes go on, others do not open until it is over."""
        self._member.clear()

    async def assign(
        self, active: Collection[int], standby: Collection[int], topics: Collection[str]
    ) -> None:
        """Bring lanes and standbys to an assignment; returns when those that left have ended."""
        async with self._lock:
            leaving: list[Lane | Standby] = [
                *(
                    lane
                    for n, lane in self.lanes.items()
                    if n not in active or set(lane.topics) != set(topics)
                ),
                *(follower for n, follower in self.standbys.items() if n not in standby),
            ]
            await self._end(leaving)
            self._member.set()
            for number in sorted(set(active) - set(self.lanes)):
                self.lanes[number] = lane = Lane(
                    self._app,
                    number,
                    cluster=self._cluster,
                    stores=self._stores,
                    clock=self._clock,
                    faults=self._faults,
                    topics=topics,
                    may_open=self._member,
                )
                self._start(lane)
            for number in sorted(set(standby) - set(self.standbys)):
                self.standbys[number] = follower = Standby(
                    self._app, number, cluster=self._cluster, stores=self._stores, clock=self._clock
                )
                self._start(follower)

    async def stop(self) -> None:
        """End every lane and standby; commits in flight are let finish."""
        async with self._lock:
            await self._end([*self.lanes.values(), *self.standbys.values()])

    def stuck(self) -> list[Lane]:
        """Lanes that have work and make no progress, or that have given up: the worker is not ready."""
        now = self._clock.now()
        return [
            lane
            for lane in self.lanes.values()
            if lane.state in (LaneState.QUARANTINED, LaneState.CLOSED)
            or ((lane.backlog or lane.state is not LaneState.OPEN) and now - lane.last_progress > STUCK_AFTER)
        ]

    def _start(self, runner: Lane | Standby) -> None:
        task = asyncio.create_task(runner.run(), name=f"{type(runner).__name__.lower()}-{runner.number}")
        self._tasks[runner] = task
        task.add_done_callback(lambda done: self._ended(runner, done))

    def _ended(self, runner: Lane | Standby, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.critical("lane_stopped", lane=runner.number, error=str(error), exc_info=error)
        if isinstance(runner, Lane) and isinstance(error, PositionLost):
            runner.error = error  # only this lane stops; the worker is not ready, and its pages say why
            return
        self._on_fatal(error)

    async def _end(self, leaving: Collection[Lane | Standby]) -> None:
        for runner in leaving:
            runner.stop()
        tasks = [self._tasks[runner] for runner in leaving]
        if tasks:
            timeout = self._app.delivery.stop_timeout + CLOSE_TIMEOUT
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                log.error("lane_cancelled", task=task.get_name(), waited=timeout)
                task.cancel()
            if late:
                _, stuck = await asyncio.wait(late, timeout=CLOSE_TIMEOUT)
                for task in stuck:
                    self._on_fatal(
                        SteadfaustError(f"{task.get_name()} does not end: the worker stops instead")
                    )
        for runner in leaving:
            group: dict[int, Lane] | dict[int, Standby]
            group = self.lanes if isinstance(runner, Lane) else self.standbys
            group.pop(runner.number, None)
            del self._tasks[runner]  # not before: an interrupted call must leave them for the next
