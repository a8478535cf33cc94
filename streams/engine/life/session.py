"""One opening of a lane: its owners of state, one above the other, and the loops that use them.

StagingArea has what is decided and not committed, Waiting what waits for a handler, Dispatch the keys that
are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streams.engine.life.ahead import TimesAhead
from streams.engine.life.cluster_checks import ClusterChecks
from streams.engine.life.housekeeping import Chore, Throttled, check_holds, expire_inbox, step_all
from streams.engine.life.positions.cuts import Cuts
from streams.engine.life.positions.producers import OwnProducers
from streams.engine.life.stopping import side_by_side
from streams.engine.staging.area import StagingArea
from streams.engine.staging.arrival import Later
from streams.engine.staging.inbox import Inbox
from streams.engine.staging.loops import Loops
from streams.engine.staging.measures import Measures
from streams.engine.staging.outcomes import Outcomes
from streams.engine.staging.payloads import Payloads
from streams.engine.waiting.dead_letters.expiry import Expiry
from streams.engine.waiting.dead_letters.table import DeadLetters
from streams.engine.waiting.due import DueHeads
from streams.engine.waiting.floods import Floods
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.operations.admission import OperationAdmission
from streams.engine.waiting.operations.operations import Operations
from streams.engine.waiting.operations.pauses import Drains, load_pauses
from streams.engine.waiting.timers import Timers
from streams.engine.waiting.waiting import Waiting
from streams.engine.way.admission import MessageAdmission
from streams.engine.way.attempt import Attempts
from streams.engine.way.changelog_ends import ChangelogEnds
from streams.engine.way.commit import Commits
from streams.engine.way.dispatch import Dispatch
from streams.engine.way.held_up import HeldUpPartitions
from streams.engine.way.intake import BacklogLimit, Intake
from streams.engine.way.loopback import Loopback
from streams.engine.way.memory import LaneMemory
from streams.engine.way.references import References
from streams.engine.way.sources import Sources
from streams.engine.way.spans import LaneSpans
from streams.engine.way.topics import TopicLooks
from streams.errors import HandlerFailed, PositionLost
from streams.model.application import Application
from streams.ports import Ports, Transactions
from streams.tracing.tracer import Tracer

#: How long a full lane waits for room before it looks again, in seconds.
FULL_PAUSE = 0.2
#: Between looks at what is due, in seconds: a timer is late by this much at most when the lane is idle.
TICK = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """State that the lanes of a worker share.

    Attributes:
        backlog_limit: how many messages they may take.
        cuts, looks: what the worker knows of cuts and topics.
        handlers: where attempts are measured, by handler; empty: they are not.
        tracer: makes spans of attempts; None: there are no traces.
        may_open: set while membership is sure. A lane that opened before would fence an owner that may be the
            right one. None: it is always sure.
    """

    backlog_limit: BacklogLimit
    cuts: Cuts
    looks: TopicLooks
    handlers: Measures = field(default_factory=dict)
    tracer: Tracer | None = None
    may_open: asyncio.Event | None = None


def shared_by(app: Application, ports: Ports, cuts: Cuts | None = None, **more: Any) -> Shared:
    """Make the shared state of a worker's lanes, for a worker with these ports."""
    limit, looks = BacklogLimit(app.lane_options), TopicLooks(ports.cluster, ports.clock)
    cuts = cuts or Cuts(app.layout, ports.cluster)
    return Shared(**{"backlog_limit": limit, "cuts": cuts, "looks": looks, **more})


class Session:
    """A lane from its opening to the first error."""

    def __init__(
        self,
        memory: LaneMemory,
        shared: Shared,
        ports: Ports,
        staging: StagingArea,
        sources: Sources,
        logs: ChangelogEnds,
    ) -> None:
        app, clock, signals = staging.app, ports.clock, memory.signals
        options, measures, handlers = app.lane_options, memory.measures, shared.handlers
        gates = {
            name: HandlerGate(name, each.breaker, handlers.get(name)) for name, each in app.handlers.items()
        }
        spans = LaneSpans(shared.tracer, app.layout.app_id, memory.number) if shared.tracer else None
        looped = app.looped.intersection(memory.topics) if options.loopback else ()
        self.loops = loops = Loops(looped, sources.unread) if looped else None
        inbox = Inbox(staging.store, staging.writes, options.inbox_retention)
        letters = DeadLetters(staging, measures.bursts)

        self.staging = staging
        self.waiting = waiting = Waiting(Outcomes(staging, loops), letters, gates)
        waiting.load(clock.now())
        load_pauses(waiting)
        in_flight: dict[bytes, Later] = {}
        due = DueHeads(waiting, in_flight, len(app.layout.partitions_of(memory.number)))
        attempts = Attempts(waiting, Payloads(app.claims), clock, spans)
        loopback = Loopback(attempts, loops, lambda: memory.reopening.limit) if loops is not None else None
        self.dispatch = dispatch = Dispatch(attempts, loopback, due, signals.progress)

        admission = MessageAdmission(waiting, inbox, loops)
        operations = OperationAdmission(Operations(waiting, inbox), letters, inbox)
        self._intake = Intake(sources, shared.backlog_limit, admission, operations, dispatch)
        timers = Timers(staging, loops, in_flight, measures.refused_timers)
        self._commits = Commits(staging, timers, spans, memory, ports, sources, logs)
        expire = partial(expire_inbox, inbox, memory.number)
        throttled = Throttled(expire, partial(check_holds, waiting), due.drop_stale)
        ahead = TimesAhead(waiting, timers, in_flight)
        self._chores: list[Chore] = [throttled, ahead, timers, dispatch, Drains(waiting), Expiry(letters)]
        if app.wiring.sources():
            self._chores.append(Floods(waiting, self._intake.taken_by_topic, sources.partitions))
        if app.claims is not None:
            self._chores.append(References(letters, app.claims.bucket))
        self._watch = ClusterChecks(memory, shared.looks, ports, staging, sources, logs)
        self._held_up = HeldUpPartitions(memory.number, sources.reader.held_up, clock)
        self._memory = memory
        self._limit = shared.backlog_limit
        self._ports = ports
        self._spans = spans

    async def close(self) -> None:
        """Drop what is under way and what is staged."""
        await self.dispatch.close()
        if self._spans is not None:
            self._spans.discarded()

    async def work(
        self,
        producer: Transactions,
        own: OwnProducers,
        committed: Callable[[], None],
        idle: Callable[[], None],
    ) -> None:
        """Read, commit and do chores side by side until the first error, or until the lane stops. `own` are
        the producers whose records are the lane's own. `committed` is called after each commit, `idle` again
        and again while there is nothing to do.

        Raises what ended it.
        """
        measures, stopping = self._memory.measures, self._memory.stopping
        measures.held_up = self._held_up
        await side_by_side(
            self._do_chores(idle),  # first: what is due comes before what is read (docs/adr/0013)
            self._read(),
            self._watch.run(stopping),
            self._held_up.run(stopping, self._ports.cluster),
            last=self._commit(producer, own, committed),
            grace=lambda: self.staging.app.lane_options.stop_timeout if stopping.is_set() else 0.0,
            fatal=(HandlerFailed, PositionLost),
        )

    async def _read(self) -> None:
        signals, intake = self._memory.signals, self._intake
        self._memory.measures.intake = intake
        while not self._memory.stopping.is_set():
            signals.room.clear()
            if await intake.step(signals.work.set):
                await asyncio.sleep(0)  # records that were there already must not starve the other lanes
                continue
            # Not wait_for: that one can swallow a cancellation on Python 3.11.
            with suppress(TimeoutError):
                async with asyncio.timeout(FULL_PAUSE):
                    await signals.room.wait()

    async def _commit(self, producer: Transactions, own: OwnProducers, committed: Callable[[], None]) -> None:
        while not self._memory.stopping.is_set():
            if await self._commits.step(producer):
                self.staging.order.record(own.follow(producer.producer_id))
                committed()
                self._memory.signals.room.set()

    async def _do_chores(self, idle: Callable[[], None]) -> None:
        order, clock = self.staging.order, self._ports.clock
        while not self._memory.stopping.is_set():
            if step_all(self._chores, clock.now(), lambda: self._limit.room(order, 0)):
                self._memory.signals.work.set()
            await clock.sleep(TICK)
            if not order.uncommitted:
                idle()
