"""The lane: one owner of a fixed set of partition numbers, over all topics of the application.

It reads, runs handlers, and commits state, inbox, outputs and source positions in one Kafka transaction;
only then does the local store change. On any doubt it drops what is staged and opens again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial

import structlog

from streams.errors import (
    Fenced,
    HandlerFailed,
    LayoutMismatch,
    PositionLost,
    PositionsDisagree,
    StoreFailed,
    TopicGone,
)
from streams.lane.aside import Aside
from streams.lane.commit import Commits
from streams.lane.held_up import HeldUpWatch
from streams.lane.intake import BacklogLimit, Intake
from streams.lane.measures import FENCED_OFTEN, FENCED_WITHIN, LaneMeasures
from streams.lane.mending import mended, place_of
from streams.lane.opening import find_start
from streams.lane.parts import Parts, parts_of
from streams.lane.recovery import open_store
from streams.lane.signals import Signals
from streams.lane.state import LaneState
from streams.lane.stopping import side_by_side, unless
from streams.lane.watch import ClusterWatch
from streams.model.application import Application
from streams.policy.reopening import Quarantine, Reopening, is_expected, is_of_the_machine, waited_out
from streams.ports import TP, Clock, Cluster, Faults, Reader, Store, Stores, Transactions
from streams.positions.cuts import Cuts
from streams.positions.producers import OwnProducers
from streams.positions.topics import TopicLooks
from streams.retry.gate import HandlerGate
from streams.staging.area import StagingArea
from streams.staging.arrival import Counters
from streams.staging.changes import Writes
from streams.staging.inbox import bucket_length
from streams.staging.measures import Measures
from streams.staging.refusals import Refusals
from streams.staging.unreadable import Unreadable
from streams.tracing.tracer import Tracer

log = structlog.get_logger(__name__)

#: How long a full lane waits for room before it looks again, in seconds.
FULL_PAUSE = 0.2
#: Between looks at what is due, in seconds: a timer is late by this much at most when the lane is idle.
TICK = 0.1


class Lane:
    """Runs until stopped; see `run`. The same class runs on Kafka and on the fake broker."""

    def __init__(
        self,
        app: Application,
        number: int,
        *,
        cluster: Cluster,
        stores: Stores,
        clock: Clock,
        faults: Faults,
        topics: Collection[str] | None = None,
        may_open: asyncio.Event | None = None,
        backlog_limit: BacklogLimit | None = None,
        cuts: Cuts | None = None,
        looks: TopicLooks | None = None,
        handlers: Measures | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`topics` are those to consume, all of the application's unless given. While `may_open` is not set,
        membership is unsure and the lane does not open: it would fence an owner that may be the right one.
        `backlog_limit`, `cuts`, `looks`, the measures of `handlers` and the `tracer` are those of the worker.
        """
        self.number = number
        self.topics = tuple(app.sources if topics is None else topics)
        self.state = LaneState.OPENING
        self.counters, self.measures = Counters(), LaneMeasures()
        self.fenced = self.reopened = self.commits = self.recovered = 0
        self.last_progress = clock.now()
        self.error: Exception | None = None
        #: What it waits out, in words for people, while it does; see `streams.policy.reopening.waited_out`.
        self.trouble = ""
        self.store: Store | None = None
        self._app, self._cluster = app, cluster
        self._stores = stores
        self._clock, self._faults = clock, faults
        self._writes = Writes(bucket_length(app.lane_options.inbox_retention), app.followed)
        self._stopping = asyncio.Event()
        self._may_open = may_open
        self._signals = Signals()
        self._refusals = Refusals()
        self._disagreed = ""
        self._parts: Parts | None = None
        self._own: OwnProducers
        self._handlers, self._tracer = handlers or {}, tracer
        self._backlog_limit = backlog_limit or BacklogLimit(app.lane_options)
        self._cuts = cuts or Cuts(app.layout, cluster)
        self._looks = looks or TopicLooks(cluster, clock)
        self._reads: Collection[TP] = ()
        self._assign: Callable[[Mapping[TP, int]], Awaitable[None]]
        self._reopening = Reopening(app.lane_options.max_batch, app.lane_options.fenced_pause)

    @property
    def waits_for_machine(self) -> bool:
        """Whether it cannot commit for its machine: the clock or the disk."""
        return bool(self.trouble) and is_of_the_machine(self.error)

    @property
    def backlog(self) -> int:
        """Messages taken and not yet committed."""
        return self._parts.staging.order.held if self._parts is not None else 0

    @property
    def gates(self) -> Mapping[str, HandlerGate]:
        """What its handlers' messages meet, by handler; nothing while it is not open."""
        return self._parts.waiting.gates if self._parts is not None else {}

    @property
    def unreadable(self) -> Unreadable:
        """What of its state it cannot read; nothing while it is not open."""
        return self._parts.staging.unreadable if self._parts is not None else Unreadable()

    @property
    def foreign(self) -> Collection[TP]:
        """Partitions of looped topics in which others write, too; nothing while it is not open."""
        loops = self._parts.loops if self._parts is not None else None
        return loops.foreign if loops is not None else ()

    # -- life -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Open, work, and open again after every doubt, until stopped.

        Raises HandlerFailed, PositionLost or LayoutMismatch, which opening again would not help: for a lost
        position this lane stops, for the others its worker.
        Positions that disagree are lost when the next opening finds the very same: who was overtaken while it
        opened has compared those of before the other's commit with those of after it (docs/adr/0007).
        """
        try:
            while not self._stopping.is_set():
                try:
                    if self.store is None:
                        self.store = open_store(self._stores, self.number, followed=bool(self._app.followed))
                    await self._session()
                except PositionsDisagree as error:
                    if str(error) == self._disagreed:
                        raise
                    self._disagreed = str(error)
                    await self._back_off(error)
                except (HandlerFailed, PositionLost, LayoutMismatch):
                    raise
                except Exception as error:  # noqa: BLE001 - logged; whatever it was, the answer is to open again
                    await self._back_off(error)
        finally:
            self.state = LaneState.CLOSED
            self._close_store()

    def stop(self) -> None:
        """Ask the lane to end; a commit in flight is let finish. `run` returns when it has."""
        self._stopping.set()
        self._signals.all()

    async def _session(self) -> None:
        """From opening to the first error, or until stopped."""
        self.state = LaneState.OPENING
        self._parts = self.measures.intake = self.measures.held_up = None
        async with AsyncExitStack() as opened:
            reader = await unless(self._stopping, self._cluster.reader())
            if reader is None:
                return
            opened.push_async_callback(reader.close)
            # A loop: membership may have become unsure again before this lane had its turn.
            while self._may_open is not None and not self._may_open.is_set():
                await unless(self._stopping, self._may_open.wait())
                if self._stopping.is_set():
                    return
            producer = self._cluster.transactions(self._app.layout.transactional_id(self.number))
            opened.push_async_callback(producer.discard)
            parts = await unless(self._stopping, self._open(producer, reader))
            if parts is not None:
                self._parts = parts
                opened.push_async_callback(parts.close)
                opened.enter_context(self._backlog_limit.counting(parts.staging.order))
                self.state = LaneState.OPEN
                if isinstance(self.error, StoreFailed):  # else a commit has to tell
                    self._goes_on()
                await self._work(parts, producer, reader)

    async def _open(self, producer: Transactions, reader: Reader) -> Parts:
        """In this order: fence all old owners, recover, learn the positions, go (docs/adr/0002)."""
        assert self.store is not None
        began = self._clock.now()
        await producer.start()
        await self._cuts.enter(self.number, producer, reader)
        start = await find_start(
            self._app,
            self.number,
            self.topics,
            store=self.store,
            cluster=self._cluster,
            reader=reader,
            writes=self._writes,
            clock=self._clock,
            faults=self._faults,
            remaining=self.measures.recovering,
            standing=self.measures.topics,
        )
        self.recovered = start.recovered
        self._disagreed = ""
        looped = [tp for tp in start.positions if tp.topic in self._app.looped]
        own = self._own = OwnProducers(self._app, self.number, self.store, reader.trust)
        former = own.unrecorded(start.positions)
        ends = await self._cluster.end_offsets({*looped, *former}) if looped or former else {}
        begun = own.begin(start.positions, {tp: ends[tp] for tp in former})
        changes = {**start.changes, **begun, **own.follow(producer.producer_id)}
        await reader.assign(start.positions, start.topic_ids)
        self._reads = start.positions.keys()
        self._assign = partial(reader.assign, topic_ids=start.topic_ids)
        self._signals.error = None
        self._refusals.begin()
        staging = StagingArea(self._app, self.store, self._writes, self.counters, self._refusals)
        staging.order.begin(start.missing, changes, start.ahead)
        parts = parts_of(
            staging,
            self.number,
            clock=self._clock,
            measures=self._handlers,
            progress=self._signals.progress,
            tracer=self._tracer,
            bursts=self.measures.bursts,
            topics=self.topics,
            refused_timers=self.measures.refused_timers,
            ends={tp: ends[tp] for tp in looped if start.positions[tp] < ends[tp]},
            limit=lambda: self._reopening.limit,
        )
        took = round(self._clock.now() - began, 3)
        log.info("lane_opened", lane=self.number, recovered=self.recovered, seconds=took)
        return parts

    async def _back_off(self, error: Exception) -> None:
        """Wait before opening again."""
        self.state = LaneState.BACKING_OFF
        self.error = error
        self.reopened += 1
        if isinstance(error, Fenced):
            self.fenced += 1
            self.measures.fenced_at.append(self._clock.now())
            if self.measures.fenced_often(self._clock.now()):
                log.warning("lane_fenced_often", lane=self.number, times=FENCED_OFTEN, seconds=FENCED_WITHIN)
        if isinstance(error, TopicGone):
            self.measures.topics.lacks(error.topics, self._clock.now())
        answer = self._reopening.failed(error, None if self._parts is None else place_of(self.store))
        if isinstance(error, StoreFailed):
            self.store = mended(self.store, error, self.number)
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

    def _close_store(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            store.close()

    # -- work -----------------------------------------------------------------------------------------

    async def _work(self, parts: Parts, producer: Transactions, reader: Reader) -> None:
        """Read and commit side by side; the first error ends both."""
        assert self.store is not None
        aside = Aside()
        watch = ClusterWatch(
            self._app,
            self.number,
            self.topics,
            reads=self._reads,
            reader=reader,
            aside=aside,
            looks=self._looks,
            standing=self.measures.topics,
            store=self.store,
            cluster=self._cluster,
            clock=self._clock,
        )
        held_up = self.measures.held_up = HeldUpWatch(self.number, reader.held_up, self._clock)
        await side_by_side(
            self._keep_house(parts),  # first: what is due comes before what is read (docs/adr/0013)
            self._read(parts, reader, aside),
            watch.run(self._stopping),
            held_up.run(self._stopping, self._cluster),
            may_end=self._commit(parts, producer),
            within=lambda: self._app.lane_options.stop_timeout if self._stopping.is_set() else 0.0,
            grave=(HandlerFailed, PositionLost),
        )

    async def _read(self, parts: Parts, reader: Reader, aside: Aside) -> None:
        signals = self._signals
        intake = self.measures.intake = Intake(
            reader,
            self._backlog_limit,
            parts,
            self._clock,
            self._app,
            signals.work.set,
            self._reads,
            self._assign,
            aside,
        )
        while not self._stopping.is_set():
            signals.room.clear()
            if await intake.step():
                await asyncio.sleep(0)  # records that were there already must not starve the other lanes
                continue
            # Not wait_for: that one can swallow a cancellation on Python 3.11.
            with suppress(TimeoutError):
                async with asyncio.timeout(FULL_PAUSE):
                    await signals.room.wait()

    async def _commit(self, parts: Parts, producer: Transactions) -> None:
        commits = Commits(
            parts,
            producer=producer,
            clock=self._clock,
            faults=self._faults,
            reopening=self._reopening,
            signals=self._signals,
            measures=self.measures,
        )
        while not self._stopping.is_set():
            if await commits.step():
                parts.staging.order.record(self._own.follow(producer.producer_id))
                self.commits += 1
                self.last_progress = self._clock.now()
                self._reopening.committed()
                self._goes_on()
                self._signals.room.set()

    async def _keep_house(self, parts: Parts) -> None:
        """Look again and again at what is due, and at what has expired."""
        while not self._stopping.is_set():
            if parts.housekeeping.step(
                self._clock.now(), lambda: self._backlog_limit.room(parts.staging.order, 0)
            ):
                self._signals.work.set()
            await self._clock.sleep(TICK)
            if not self.backlog and not self._reopening.failing:
                self.last_progress = self._clock.now()  # nothing to do is no standstill
