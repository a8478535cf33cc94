"""Start and stop the lanes and standbys of one worker, as the group assigns them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import structlog

from streams.engine.life.lane import Lane
from streams.engine.life.session import Shared, shared_by
from streams.engine.life.standby import Standby
from streams.engine.life.state import LaneState
from streams.engine.life.watchdog import Watchdog
from streams.engine.staging.measures import Measures
from streams.errors import PositionLost, SteadfaustError, text_of
from streams.model.application import Application
from streams.ports import Ports

log = structlog.get_logger(__name__)

#: Seconds that closing connections and stores may take, in addition to a lane's stop timeout.
CLOSE_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The latest assignment; empty before the first one and after the end."""

    active: frozenset[int] = frozenset()
    standby: frozenset[int] = frozenset()
    topics: tuple[str, ...] = ()

    def fits(self, runner: Lane | Standby) -> bool:
        """Whether a running lane or standby is in the assignment, with its topics."""
        if isinstance(runner, Lane):
            return runner.number in self.active and set(runner.topics) == set(self.topics)
        return runner.number in self.standby


class LaneHost:
    """Starts and stops lanes as they are assigned.

    A lane that stays assigned keeps running through the rebalance. If another worker owned it meanwhile, that
    worker has fenced it, and its next commit fails. Each lane number is handed over separately and in the
    background, so that the member keeps sending heartbeats. The host ends a lane or standby that does not fit
    the latest assignment. Once it has ended, the host starts what the latest assignment asks for by then.
    """

    def __init__(
        self,
        app: Application,
        ports: Ports,
        on_fatal: Callable[[BaseException], None],
        shared: Shared | None = None,
    ) -> None:
        """`on_fatal` is called with an error for which the worker must stop. `shared` is the state that its
        lanes share; the host replaces `may_open` in it and decides when lanes may open.
        """
        self.lanes: dict[int, Lane] = {}
        self.standbys: dict[int, Standby] = {}
        self._app = app
        self._ports = ports
        self._clock = ports.clock
        self._on_fatal = on_fatal
        self._member = asyncio.Event()
        self._shared = replace(shared or shared_by(app, ports), may_open=self._member)
        self.measures: Measures = self._shared.handlers
        self._wanted = _Wanted()
        self._tasks: dict[Lane | Standby, asyncio.Task[None]] = {}
        self._ending: dict[int, asyncio.Task[None]] = {}
        self._watchdog = Watchdog(self.lanes, ports.clock)
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False

    def membership_unsure(self) -> None:
        """Open no lanes until the rebalance is over; lanes that are open keep running."""
        self._member.clear()

    def assign(self, active: Collection[int], standby: Collection[int], topics: Collection[str]) -> None:
        """Start and end lanes and standbys to match an assignment, which replaces earlier ones. Returns at
        once.

        A member that restarts quickly gets its predecessor's assignment, which may include topics that this
        version no longer consumes. They are left out.
        """
        if self._stopped:
            return
        if not self._app.routes:  # only plain agents: a lane would have nothing to read
            active = standby = ()
        known = set(self._app.sources)
        topics = tuple(topic for topic in topics if topic in known)
        self._wanted = _Wanted(frozenset(active), frozenset(standby), topics)
        self._member.set()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watchdog.run(), name="watchdog")
            self._watching.add_done_callback(self._must_not_fail)
        self._settle_all()

    async def stop(self) -> None:
        """End all lanes and standbys for good. Commits in flight may finish."""
        self._stopped = True
        if self._watching is not None:
            self._watching.cancel()
        self._wanted = _Wanted()
        self._settle_all()
        await self.settled()

    async def settled(self) -> None:
        """Wait until no lane or standby is ending. Those that run then belong to the latest assignment."""
        while self._ending:
            await asyncio.wait(self._ending.values())

    def stuck(self) -> list[Lane]:
        """Lanes that have given up, or make no progress with their work or their opening. While there are
        any, the worker is not ready.
        """
        return self._watchdog.stuck()

    def waited_for_machine(self) -> float:
        """How long, in seconds, a lane has waited for its machine's clock or disk; the longest of all lanes,
        0 if none waits.
        """
        now = self._clock.now()
        waiting = [now - lane.last_progress for lane in self.lanes.values() if lane.waits_for_machine]
        return max(waiting, default=0.0)

    def _settle_all(self) -> None:
        wanted = self._wanted
        for number in sorted({*wanted.active, *wanted.standby, *self.lanes, *self.standbys}):
            self._settle(number)

    def _settle(self, number: int) -> None:
        runner = self.lanes.get(number) or self.standbys.get(number)
        if runner is None:
            self._start(number)
        elif number not in self._ending and not self._wanted.fits(runner):
            ending = asyncio.create_task(self._replace(runner), name=f"replace-{number}")
            self._ending[number] = ending
            ending.add_done_callback(self._must_not_fail)

    async def _replace(self, runner: Lane | Standby) -> None:
        await self._end(runner)
        del self._ending[runner.number]
        self._settle(runner.number)

    def _must_not_fail(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(error)

    def _start(self, number: int) -> None:
        runner: Lane | Standby
        if number in self._wanted.active:
            topics = self._wanted.topics
            runner = self.lanes[number] = Lane(self._app, number, self._ports, self._shared, topics)
        elif number in self._wanted.standby:
            yields = self._is_opening_a_lane
            runner = self.standbys[number] = Standby(self._app, number, self._ports, yields=yields)
        else:
            return
        task = asyncio.create_task(runner.run(), name=f"{type(runner).__name__.lower()}-{number}")
        self._tasks[runner] = task
        task.add_done_callback(lambda done: self._ended(runner, done))

    def _is_opening_a_lane(self) -> bool:
        """Whether a lane is opening. Standbys yield to it, because messages wait for the lane."""
        return any(lane.state is LaneState.OPENING for lane in self.lanes.values())

    def _ended(self, runner: Lane | Standby, task: asyncio.Task[None]) -> None:
        if task.cancelled() and not task.cancelling():
            # Something that it awaited was cancelled. Without an error it would end unnoticed.
            error: BaseException | None = SteadfaustError(f"{task.get_name()} was cancelled unexpectedly")
        else:
            error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if isinstance(runner, Lane) and isinstance(error, PositionLost):
            runner.error = error  # only this lane stops; the worker is not ready, and its pages say why
        else:
            self._on_fatal(error)
        log.critical("lane_stopped", lane=runner.number, error=text_of(error), exc_info=error)

    async def _end(self, runner: Lane | Standby) -> None:
        runner.stop()
        task = self._tasks[runner]
        timeout = self._app.lane_options.stop_timeout + CLOSE_TIMEOUT
        await asyncio.wait((task,), timeout=timeout)
        if not task.done():
            log.error("lane_cancelled", task=task.get_name(), waited=timeout)
            task.cancel()
            await asyncio.wait((task,), timeout=CLOSE_TIMEOUT)
            if not task.done():
                self._on_fatal(SteadfaustError(f"{task.get_name()} does not end: the worker stops instead"))
        self.lanes.pop(runner.number, None)
        self.standbys.pop(runner.number, None)
        del self._tasks[runner]
