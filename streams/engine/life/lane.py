"""A lane: a fixed set of partition numbers across all topics of the application, with a single owner.

A lane reads messages, runs handlers, and commits rows, inbox, messages and positions in one Kafka
transaction. Only then does it change the local store. After an error it drops everything staged, and opens
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack

import structlog

from streams.engine.life.opening import find_start
from streams.engine.life.positions.log_cuts import remember
from streams.engine.life.positions.producers import OwnProducers
from streams.engine.life.recovery import let_go, open_store, place_of
from streams.engine.life.session import Session, Shared, shared_by
from streams.engine.life.state import LaneState
from streams.engine.life.stopping import unless
from streams.engine.staging.area import StagingArea
from streams.engine.staging.changes import Writes
from streams.engine.staging.inbox import bucket_length
from streams.engine.staging.unreadable import UnreadableRows
from streams.engine.waiting.gate import HandlerGate
from streams.engine.way.measures import OFTEN, OFTEN_WITHIN
from streams.engine.way.memory import LaneMemory
from streams.engine.way.sources import Sources
from streams.errors import (
    ClusterUnavailable,
    Fenced,
    HandlerFailed,
    LayoutMismatch,
    LogCut,
    PositionLost,
    PositionsDisagree,
    StoreFailed,
    TopicGone,
    TransactionFailed,
)
from streams.escapes import contain_tasks
from streams.model.application import Application
from streams.model.policy.reopening import Quarantine, Reopening, is_expected, is_of_the_machine, waited_out
from streams.ports import TP, Ports, Reader, Store, Transactions

log = structlog.get_logger(__name__)


class Lane:
    """A lane of a worker, on Kafka or on the fake broker. `run` runs it until it is stopped."""

    def __init__(
        self,
        app: Application,
        number: int,
        ports: Ports,
        shared: Shared | None = None,
        topics: Collection[str] | None = None,
    ) -> None:
        """`topics` are the topics to consume; None means all of the application's. `shared` is the state that
        the lanes of the worker share; None makes one for this lane.
        """
        self.state = LaneState.OPENING
        self.fenced = self.reopened = self.commits = self.recovered = 0
        self.last_progress = ports.clock.now()
        self.error: Exception | None = None
        #: The problem that the lane waits out, as text for people; empty if there is none. See
        #: `policy.reopening.waited_out`.
        self.trouble = ""
        self.store: Store | None = None
        self._app = app
        self._ports = ports
        self._cluster, self._clock = ports.cluster, ports.clock
        self._shared = shared or shared_by(app, ports)
        self._writes = Writes(bucket_length(app.lane_options.inbox_retention), app.followed)
        self._reopening = Reopening(app.lane_options.max_batch, app.lane_options.fenced_pause)
        self.number, self.topics = number, tuple(app.sources if topics is None else topics)
        self._memory = LaneMemory(number, self.topics, self._reopening)
        self.counters, self.measures = self._memory.counters, self._memory.measures
        self._stopping = self._memory.stopping
        self._disagreed: object = None
        self._session: Session | None = None
        self._own: OwnProducers

    @property
    def waits_for_machine(self) -> bool:
        """Whether the machine's clock or disk prevents its commits."""
        return bool(self.trouble) and is_of_the_machine(self.error)

    @property
    def backlog(self) -> int:
        """Number of messages taken and not yet committed."""
        return self._session.staging.order.uncommitted if self._session is not None else 0

    @property
    def gates(self) -> Mapping[str, HandlerGate]:
        """The gates of the lane's handlers, by name; empty while the lane is not open."""
        return self._session.waiting.gates if self._session is not None else {}

    @property
    def unreadable(self) -> UnreadableRows:
        """Rows of the lane's state that cannot be read; empty while the lane is not open."""
        return self._session.staging.unreadable if self._session is not None else UnreadableRows()

    @property
    def foreign(self) -> Collection[TP]:
        """Partitions of looped topics that others write to as well; empty while the lane is not open."""
        loops = self._session.loops if self._session is not None else None
        return loops.foreign if loops is not None else ()

    async def run(self) -> None:
        """Open, work, and open again after every error, until stopped.

        Positions that disagree count as lost only if the next opening finds the same two positions, because
        another owner may have committed between the two reads (docs/adr/0007).

        Raises HandlerFailed, PositionLost or LayoutMismatch, which opening again would not cure. PositionLost
        stops this lane, the others stop the worker.
        """
        contain_tasks(asyncio.get_running_loop())
        try:
            while not self._stopping.is_set():
                try:
                    if self.store is None:
                        stores, followed = self._ports.stores, bool(self._app.followed)
                        self.store = open_store(stores, self.number, followed=followed)
                    await self._open_and_work()
                except PositionsDisagree as error:
                    is_sure = error.place == self._disagreed
                    if isinstance(error, LogCut) and (is_sure or error.hides):
                        await self._remember(error)
                    if is_sure:
                        raise
                    self._disagreed = error.place
                    await self._back_off(error)
                except (HandlerFailed, PositionLost, LayoutMismatch):
                    raise
                except Exception as error:  # noqa: BLE001 - logged; whatever it was, the answer is to open again
                    await self._back_off(error)
        finally:
            self.state = LaneState.CLOSED
            store, self.store = self.store, None
            if store is not None:
                store.close()

    def stop(self) -> None:
        """Ask the lane to end. A running commit may finish; then `run` returns."""
        self._stopping.set()
        self._memory.signals.all()

    async def _open_and_work(self) -> None:
        """Open the lane, then work until the first error or until stopped."""
        self.state = LaneState.OPENING
        self._session = self.measures.intake = self.measures.held_up = None
        async with AsyncExitStack() as opened:
            reader = await unless(self._stopping, self._cluster.reader())
            if reader is None:
                return
            opened.push_async_callback(reader.close)
            if not await self._may_open():
                return
            producer = self._cluster.transactions(self._app.layout.transactional_id(self.number))
            opened.push_async_callback(producer.discard)
            session = await unless(self._stopping, self._open(producer, reader))
            if session is not None:
                self._session = session
                opened.push_async_callback(session.close)
                opened.enter_context(self._shared.backlog_limit.counting(session.staging.order))
                self.state = LaneState.OPEN
                if isinstance(self.error, StoreFailed):  # other problems are over only after a commit
                    self._goes_on()
                await session.work(producer, self._own, self._committed, self._idle)

    async def _open(self, producer: Transactions, reader: Reader) -> Session:
        """Fence all previous owners, recover, look up the positions, then start; in this order
        (docs/adr/0002).
        """
        assert self.store is not None
        began = self._clock.now()
        await producer.start()
        await self._shared.cuts.enter(self.number, producer, reader)
        start = await find_start(self._app, self._memory, self._ports, self.store, reader, self._writes)
        self.recovered = start.recovered
        self._disagreed = None
        looped = [tp for tp in start.positions if tp.topic in self._app.looped]
        own = self._own = OwnProducers(self._app, self.number, self.store, reader.trust)
        former = own.unrecorded(start.positions)
        ends = await self._cluster.end_offsets({*looped, *former}) if looped or former else {}
        begun = own.begin(start.positions, {tp: ends[tp] for tp in former})
        changes = {**start.changes, **begun, **own.follow(producer.producer_id)}
        await reader.assign(start.positions, start.topic_ids, start.epochs)
        self._memory.signals.error = None
        self._memory.refusals.begin()
        unread = {tp: end for tp, end in ends.items() if start.positions[tp] < end}
        sources = Sources(reader, start.positions, start.topic_ids, unread, start.epochs)
        staging = StagingArea(self._app, self.store, self._writes, self.counters, self._memory.refusals)
        staging.order.begin(start.missing, changes, start.ahead)
        session = Session(self._memory, self._shared, self._ports, staging, sources, start.logs)
        took = round(self._clock.now() - began, 3)
        log.info("lane_opened", lane=self.number, recovered=self.recovered, seconds=took)
        return session

    async def _may_open(self) -> bool:
        """Wait while membership is unsure. False if the lane has been told to stop."""
        may_open = self._shared.may_open
        # A loop: membership may have become unsure again before this lane had its turn.
        while may_open is not None and not may_open.is_set():
            await unless(self._stopping, may_open.wait())
            if self._stopping.is_set():
                return False
        return True

    async def _remember(self, error: LogCut) -> None:
        """Commit a note of the lost records with the positions, because the log may grow again and then look
        complete. This fences, as an opening does. A lane that is stopping leaves the note to the next owner,
        which finds the same loss, unless this lane's own writes may hide it (`error.hides`).
        """
        if not await self._may_open() and not error.hides:
            return
        try:
            await remember(self._app.layout, self.number, self._cluster, error)
        except (ClusterUnavailable, Fenced, TransactionFailed) as failed:
            log.warning(
                "cut_not_noted", lane=self.number, error=str(failed), action="the lane stops all the same"
            )

    async def _back_off(self, error: Exception) -> None:
        """Wait before opening again."""
        self.state = LaneState.BACKING_OFF
        self.error = error
        self.reopened += 1
        self.measures.reopened_at.append(self._clock.now())
        if isinstance(error, Fenced):
            self.fenced += 1
            self.measures.fenced_at.append(self._clock.now())
            if self.measures.fenced_often(self._clock.now()):
                log.warning("lane_fenced_often", lane=self.number, times=OFTEN, seconds=OFTEN_WITHIN)
        if isinstance(error, TopicGone):
            self.measures.topics.lacks(error.topics, self._clock.now())
        answer = self._reopening.failed(error, None if self._session is None else place_of(self.store))
        if isinstance(error, StoreFailed):
            store, self.store = self.store, None
            let_go(self._ports.stores, store, error, self.number)
        why, limit = {"error": repr(error), "cause": repr(error.__cause__)}, self._reopening.limit
        self.trouble = waited_out(error)
        if self.trouble:
            log.warning("lane_waits", lane=self.number, cause=self.trouble, pause=answer.after)
        else:
            log.warning("lane_reopens", lane=self.number, **why, limit=limit)
        if not is_expected(error):
            log.error("lane_error", lane=self.number, exc_info=error)
        if isinstance(answer, Quarantine):
            self.state = LaneState.QUARANTINED
            log.critical(
                "lane_quarantined",
                lane=self.number,
                error=repr(error),
                action=f"tried again in {answer.after:g} s; others go on; report the error",
            )
        await unless(self._stopping, self._clock.sleep(answer.after))

    def _goes_on(self) -> None:
        if self.trouble:
            log.info("lane_goes_on", lane=self.number, after=self.trouble)
            self.trouble = ""

    def _committed(self) -> None:
        self.commits += 1
        self.last_progress = self._clock.now()
        self._reopening.committed()
        self._goes_on()

    def _idle(self) -> None:
        if not self._reopening.failing:
            self.last_progress = self._clock.now()  # an idle lane is not stuck
