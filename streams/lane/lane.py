"""The lane: one owner of a fixed set of partition numbers, over all topics of the application.

It reads, runs handlers, and commits state, inbox, outputs and source positions in one Kafka transaction;
only then does the local store change. On any doubt it drops what is staged and opens again.

Longer than other modules: opening, reading, committing and reopening are one life, read in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack, closing, suppress
from enum import StrEnum

import structlog

from streams.errors import (
    ClusterUnavailable,
    Fenced,
    HandlerFailed,
    LayoutMismatch,
    PositionLost,
    PositionsDisagree,
    StoreBroken,
)
from streams.lane.backlog import BacklogLimit
from streams.lane.commit import commit
from streams.lane.dispatch import Pipeline
from streams.lane.intake import Intake
from streams.lane.recovery import (
    changelog_partitions,
    open_store,
    recover,
    source_partitions,
    source_positions,
    touch,
)
from streams.lane.stopping import unless
from streams.model.application import Application
from streams.model.layout import LANE
from streams.policy.reopening import Reopen, Reopening, is_expected
from streams.ports import Clock, Cluster, Faults, Reader, Store, Stores, Transactions, Write
from streams.positions.checks import check_topics, first_positions
from streams.positions.cuts import Cuts
from streams.retry.gate import HandlerGate
from streams.staging.arrival import Counters
from streams.staging.changes import POSITIONS, TIMERS_BY_DUE, Writes
from streams.staging.inbox import Inbox, bucket_length
from streams.staging.sequences import writes_of
from streams.staging.timers import DueIndex

log = structlog.get_logger(__name__)

#: How long a full lane waits for room before it looks again, in seconds.
FULL_PAUSE = 0.2
#: Between looks at the timers, in seconds: a timer is late by this much at most when the lane is idle.
TIMER_INTERVAL = 0.1
#: How long an idle lane waits before it commits positions that only markers have moved, in seconds.
IDLE_COMMIT = 30.0
#: How long a lane waits for messages before it records alone where partitions begin that are new to it.
FIRST_COMMIT = 5.0
#: Between looks whether something is to be asked of the cluster, and after an answer that did not come.
ASK_INTERVAL = 5.0
#: Between looks at what has expired, in seconds.
HOUSEKEEPING = 600.0


class LaneState(StrEnum):
    """Where a lane is in its life."""

    OPENING = "opening"
    OPEN = "open"
    WAITING = "waiting"  # after an error, before it opens again
    QUARANTINED = "quarantined"
    CLOSED = "closed"


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
    ) -> None:
        """`topics` are those to consume, all of the application's unless given. While `may_open` is not set,
        membership is unsure and the lane does not open: it would fence an owner that may be the right one.
        `backlog_limit` and `cuts` are shared by the lanes of a worker.
        """
        self.number = number
        self.topics = tuple(app.sources if topics is None else topics)
        self.state = LaneState.OPENING
        self.counters = Counters()
        self.fenced = 0
        self.reopened = 0
        self.commits = 0
        self.recovered = 0
        self.last_progress = clock.now()
        self.error: Exception | None = None
        self.store: Store | None = None
        self._app = app
        self._cluster = cluster
        self._stores = stores
        self._clock = clock
        self._faults = faults
        self._writes = Writes(bucket_length(app.lane_options.inbox_retention))
        self._due = DueIndex()
        self._stopping = asyncio.Event()
        self._may_open = may_open
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._error: BaseException | None = None
        self._disagreed = ""
        self._touched = 0.0
        self._idle_until: float | None = None
        self._pipeline: Pipeline | None = None
        self._backlog_limit = backlog_limit or BacklogLimit(app.lane_options)
        self._cuts = cuts or Cuts(app.layout, cluster)
        self._reopening = Reopening(app.lane_options.max_batch, app.lane_options.fenced_pause)

    @property
    def backlog(self) -> int:
        """Messages taken and not yet committed."""
        return self._pipeline.sequences.held if self._pipeline is not None else 0

    @property
    def gates(self) -> Mapping[str, HandlerGate]:
        """What its handlers' messages meet, by handler; nothing while it is not open."""
        return self._pipeline.gates if self._pipeline is not None else {}

    # -- life -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Open, work, and open again after every doubt, until stopped.

        Raises HandlerFailed, PositionLost or LayoutMismatch, which opening again would not help: for a lost
        position this lane stops, for the others its worker.
        Positions that disagree are lost when the next opening finds the very same: who was overtaken while it
        opened has compared those of before the other's commit with those of after it (docs/adr/0007).
        """
        try:
            self.store = open_store(self._stores, self.number)
            while not self._stopping.is_set() and self.state is not LaneState.QUARANTINED:
                try:
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
            await self._stopping.wait()
        finally:
            if self.state is not LaneState.QUARANTINED:
                self.state = LaneState.CLOSED
            if self.store is not None:
                self.store.close()
                self.store = None

    def stop(self) -> None:
        """Ask the lane to end; a commit in flight is let finish. `run` returns when it has."""
        self._stopping.set()
        self._wake.set()
        self._room.set()

    async def _session(self) -> None:
        """From opening to the first error, or until stopped."""
        self.state = LaneState.OPENING
        self._pipeline = None
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
            pipeline = await unless(self._stopping, self._open(producer, reader))
            if pipeline is not None:
                self._pipeline = pipeline
                opened.push_async_callback(pipeline.close)
                opened.enter_context(self._backlog_limit.counting(pipeline.sequences))
                self.state = LaneState.OPEN
                await self._work(pipeline, producer, reader)

    async def _open(self, producer: Transactions, reader: Reader) -> Pipeline:
        """In this order: fence all old owners, recover, learn the positions, go (docs/adr/0002)."""
        assert self.store is not None
        began = self._clock.now()
        await producer.start()
        await self._cuts.enter(self.number, producer, reader)
        self.recovered = await recover(
            self._app,
            self.number,
            store=self.store,
            cluster=self._cluster,
            reader=reader,
            writes=self._writes,
            clock=self._clock,
            faults=self._faults,
        )
        sources = source_partitions(self._app, self.number, self.topics)
        positions, forgotten = await source_positions(self._app, sources, self.store, self._cluster)
        first = await check_topics(self._app, self.number, self.topics, self.store, self._cluster)
        self._disagreed = ""
        self._due = DueIndex()  # others may have written what was recovered
        await reader.assign(positions)
        inbox = Inbox(self.store, self._writes, self._app.lane_options.inbox_retention)
        self._error = None
        partitions = self._app.layout.partitions_of(self.number)
        pipeline = Pipeline(
            self._app, self.store, inbox, self._clock, self.counters, self._on_progress, partitions
        )
        missing = first_positions(self.store, positions) | {tp: positions[tp] for tp in forgotten}
        pipeline.sequences.begin(missing, first)
        self._keep_house(pipeline)
        seconds = round(self._clock.now() - began, 3)
        log.info("lane_opened", lane=self.number, recovered=self.recovered, seconds=seconds)
        return pipeline

    async def _back_off(self, error: Exception) -> None:
        """Wait before opening again, or give up."""
        self.state = LaneState.WAITING
        self.error = error
        self.reopened += 1
        self.fenced += isinstance(error, Fenced)
        if isinstance(error, StoreBroken) and self.store is not None:
            log.warning("store_broken", lane=self.number, action="wiped, rebuilt from the changelog")
            self.store.wipe()
        verdict = self._reopening.failed(error, self._committed_positions())
        log.warning(
            "lane_reopens",
            lane=self.number,
            error=repr(error),
            cause=repr(error.__cause__),
            limit=self._reopening.limit,
        )
        if not is_expected(error):
            log.error("lane_error", lane=self.number, exc_info=error)
        if isinstance(verdict, Reopen):
            await unless(self._stopping, self._clock.sleep(verdict.after))
        else:
            self.state = LaneState.QUARANTINED
            log.critical(
                "lane_quarantined",
                lane=self.number,
                error=repr(error),
                action="the lane stays closed, others go on; restart the worker when the cause is mended",
            )

    def _committed_positions(self) -> Mapping[bytes, bytes] | None:
        """What tells one place of failure from another; None while opening."""
        if self._pipeline is None or self.store is None:
            return None
        return dict(self.store.scan(POSITIONS))

    # -- work -----------------------------------------------------------------------------------------

    async def _work(self, pipeline: Pipeline, producer: Transactions, reader: Reader) -> None:
        """Read and commit side by side; the first error ends both."""
        tasks = [
            asyncio.create_task(self._read(pipeline, reader)),
            asyncio.create_task(self._commit(pipeline, producer)),
            asyncio.create_task(self._fire_timers(pipeline)),
            asyncio.create_task(self._ask()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():  # a commit in flight may end
                await asyncio.wait(tasks[1:2], timeout=self._app.lane_options.stop_timeout)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)]
        # What ends the worker must not hide behind what broke because of it: first what is no Exception at
        # all, then a failed handler or a lost position.
        grave = (HandlerFailed, PositionLost)
        for error in sorted(errors, key=lambda e: (isinstance(e, Exception), not isinstance(e, grave))):
            raise error

    def _on_progress(self, error: BaseException | None) -> None:
        self._error = self._error or error
        self._wake.set()
        self._room.set()

    async def _read(self, pipeline: Pipeline, reader: Reader) -> None:
        intake = Intake(pipeline, reader, self._backlog_limit, self._wake.set)
        while not self._stopping.is_set():
            self._room.clear()
            if await intake.step():
                await asyncio.sleep(0)  # records that were there already must not starve the other lanes
                continue
            # Not wait_for: that one can swallow a cancellation on Python 3.11.
            with suppress(TimeoutError):
                async with asyncio.timeout(FULL_PAUSE):
                    await self._room.wait()

    async def _commit(self, pipeline: Pipeline, producer: Transactions) -> None:
        assert self.store is not None
        linger = self._app.lane_options.linger
        while not self._stopping.is_set():
            self._wake.clear()
            if self._error is not None:
                raise self._error
            if not pipeline.sequences.has_finished() and not await self._idle(pipeline):
                continue
            if linger and pipeline.sequences.backlog < self._reopening.limit:
                await self._clock.sleep(linger)
            staged = pipeline.sequences.take(self._reopening.limit, self._app.lane_options.max_batch_bytes)
            began = self._clock.now()
            ends = await commit(producer, staged, self._app.layout.app_id, self._faults)
            changelogs = self._app.changelogs
            # Whoever can commit was the only writer until then: nothing in the changelogs is of another's.
            # Not of now: the process may have been frozen since, for days.
            self.store.apply(
                writes_of(staged, self._writes),
                {tp: end for tp, end in ends.items() if tp.topic in changelogs},
                current_at=began if ends else None,
            )
            self._due.written(staged.changes.get(LANE, {}).values())
            await self._faults.reach("applied")
            pipeline.overlay.forget(staged)
            pipeline.sequences.committed()
            self._succeeded()

    async def _idle(self, pipeline: Pipeline) -> bool:
        """Wait for work; True when there was none for long, but markers have moved positions on, or the first
        ones are still to be recorded. Whoever wakes it without work does not prolong the time.
        """
        if not pipeline.sequences.has_passed:
            self._idle_until = None
        elif self._idle_until is None:
            wait = FIRST_COMMIT if pipeline.sequences.has_first else IDLE_COMMIT
            self._idle_until = asyncio.get_running_loop().time() + wait
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._idle_until):
                await self._wake.wait()
                return False
        self._idle_until = None
        return True

    def _succeeded(self) -> None:
        self.commits += 1
        self.last_progress = self._clock.now()
        self._reopening.committed()
        self._room.set()

    async def _fire_timers(self, pipeline: Pipeline) -> None:
        assert self.store is not None
        kept = self._clock.now()
        while not self._stopping.is_set():
            if self._clock.now() - kept > HOUSEKEEPING:
                kept = self._clock.now()
                self._keep_house(pipeline)
            self._fire_due(pipeline)
            tried = pipeline.retry(self._backlog_limit.room(pipeline.sequences, 0))
            if pipeline.keep_house(self._clock.now()) or tried:
                self._wake.set()
            if pipeline.expire(self._clock.now()):
                self._wake.set()
            await self._clock.sleep(TIMER_INTERVAL)
            if not self.backlog and not self._reopening.failing:
                self.last_progress = self._clock.now()  # nothing to do is no standstill

    async def _ask(self) -> None:
        """Ask the cluster now and then whether topics and store are what they were, beside all else: an
        answer may take long, and the lane goes on without one.
        """
        assert self.store is not None
        checked = self._clock.now()
        while not self._stopping.is_set():
            await self._clock.sleep(ASK_INTERVAL)
            try:
                if self._clock.now() - checked > HOUSEKEEPING:
                    await check_topics(self._app, self.number, self.topics, self.store, self._cluster)
                    checked = self._clock.now()
                await self._touch()
            except ClusterUnavailable as error:
                log.warning("lane_cannot_ask", lane=self.number, error=str(error), action="asked again")

    async def _touch(self) -> None:
        """An idle lane's store is current, too: say so, lest it be rebuilt when it is opened again."""
        assert self.store is not None
        interval, now = min(HOUSEKEEPING, self._app.lane_options.delete_retention / 8), self._clock.now()
        if now - max(self.store.current_at() or 0.0, self._touched) > interval:
            await touch(self.store, self._cluster, changelog_partitions(self._app, self.number), self._clock)
            self._touched = now

    def _fire_due(self, pipeline: Pipeline) -> None:
        assert self.store is not None
        lane_options = self._app.lane_options
        stale = []
        with closing(self._due.due(self.store, self._clock.now(), pipeline.is_staged)) as found:
            for due, index_key in found:
                if due is None:
                    stale.append(Write(TIMERS_BY_DUE, index_key, None))
                elif pipeline.fire(due):
                    self._wake.set()
                if pipeline.sequences.is_over(lane_options.max_backlog, lane_options.max_backlog_bytes):
                    break
        if stale:
            self.store.apply(stale, {})

    def _keep_house(self, pipeline: Pipeline) -> None:
        """Drop what has expired."""
        if expired := pipeline.inbox.expire(self._clock.now()):
            log.info("inbox_expired", lane=self.number, buckets=expired)
        pipeline.watch_letters()
        pipeline.tidy()
