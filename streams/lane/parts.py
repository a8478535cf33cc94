"""What a lane works with between one opening and the next, put together: each part takes what it uses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from streams.dead_letters.bursts import Bursts
from streams.dead_letters.table import DeadLetters
from streams.lane.admission import Admission
from streams.lane.attempt import AttemptRunner
from streams.lane.dispatch import Dispatch
from streams.lane.housekeeping import Chore, DueHeads, Housekeeping, Seldom, inbox_expiry
from streams.lane.loopback import Loopback
from streams.lane.references import References
from streams.lane.rows import RowReader
from streams.lane.spans import LaneSpans
from streams.lane.timers import RefusedTimers, Timers
from streams.model.application import Application
from streams.operator.admission import OperationAdmission
from streams.operator.expiry import Expiry
from streams.operator.operations import OperationProcessor
from streams.operator.pauses import Pauses
from streams.operator.replays import Replays
from streams.operator.rows import RowOperations
from streams.ports import TP, Clock, Store
from streams.retry.gate import HandlerGate
from streams.retry.queues import Queues
from streams.retry.scheduler import RetryScheduler
from streams.retry.waiting import Waiting
from streams.staging.area import Overlay
from streams.staging.arrival import Arrival, Counters
from streams.staging.changes import IDS_BYTES, Writes
from streams.staging.commit_order import CommitOrder
from streams.staging.inbox import Inbox
from streams.staging.loops import Loops
from streams.staging.measures import Measures
from streams.staging.outcomes import OutcomeWriter
from streams.staging.payloads import Payloads
from streams.staging.refusals import Refusals
from streams.staging.unreadable import Unreadable
from streams.tracing.tracer import Tracer


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a lane itself meets."""

    sequences: CommitOrder
    overlay: Overlay
    gates: Mapping[str, HandlerGate]
    admission: Admission
    operations: OperationAdmission
    dispatch: Dispatch
    timers: Timers
    housekeeping: Housekeeping
    spans: LaneSpans | None
    loops: Loops | None
    unreadable: Unreadable
    waiting: Waiting

    async def close(self) -> None:
        """Drop what is under way and what is staged."""
        await self.dispatch.close()
        if self.spans is not None:
            self.spans.discarded()


def parts_of(
    app: Application,
    lane: int,
    store: Store,
    *,
    writes: Writes,
    clock: Clock,
    counters: Counters,
    measures: Measures,
    progress: Callable[[BaseException | None], None],
    tracer: Tracer | None,
    topics: Collection[str],
    ends: Mapping[TP, int],
    bursts: Bursts,
    refusals: Refusals,
    refused_timers: dict[bytes, str],
    limit: Callable[[], int],
) -> Parts:
    """Those of a lane that has just recovered. `progress` is called when an async handler has finished, with
    its error if it failed. `measures` are those of the worker. Without a `tracer` there are no traces.
    `topics` are those that the lane consumes, `ends` those of partitions that it writes and has not read.
    `limit` says how many messages a transaction may hold now.

    Longer than other functions: it only says who is given whom.
    """
    options = app.lane_options
    gates = {
        name: HandlerGate(name, handler.breaker, measures.get(name)) for name, handler in app.handlers.items()
    }
    busy: dict[bytes, deque[Arrival]] = {}
    ids_bytes = min(IDS_BYTES, options.max_message_bytes // 2)
    sequences, overlay = CommitOrder(app.layout, ids_bytes, options.max_ahead), Overlay()
    inbox = Inbox(store, writes, options.inbox_retention)
    looped = app.looped.intersection(topics) if options.loopback else ()
    loops = Loops(looped, ends) if looped else None
    writer = OutcomeWriter(app, overlay, sequences, counters, loops)
    unreadable = Unreadable()
    letters = DeadLetters(app, store, overlay, writer, bursts, unreadable)
    payloads = Payloads(app.claims)

    queues = Queues(store, overlay, unreadable)
    waiting = Waiting(app, gates, queues, writer, letters)
    waiting.load(clock.now())
    partitions = len(app.layout.partitions_of(lane))
    scheduler = RetryScheduler(app, queues, gates, sequences, busy, waiting.log_unknown, partitions, refusals)

    pauses = Pauses(app, gates, queues, writer)
    pauses.load(store)
    replays = Replays(app, waiting)
    mended = RowOperations(app, store, overlay, writer, unreadable)
    processor = OperationProcessor(app, inbox, overlay, writer, letters, replays, pauses, mended)

    rows = RowReader(store, overlay, unreadable)
    spans = None if tracer is None else LaneSpans(tracer, app.layout.app_id, lane)
    loopback = None
    if loops is not None:
        loopback = Loopback(app.layout.app_id, app.routes, gates, rows, writer, loops, limit, spans)
    runner = AttemptRunner(waiting, rows, writer, payloads, sequences, clock, spans, loopback)
    dispatch = Dispatch(runner, processor, scheduler, payloads, busy, clock, options.max_in_flight, progress)
    refused = RefusedTimers(writer, refusals, refused_timers)
    timers = Timers(options, store, overlay, sequences, writer, busy, unreadable, refused)
    chores: list[Chore] = [
        Seldom(inbox_expiry(inbox, lane), lambda _: replays.log_holds(), scheduler.drop_stale),
        timers,
        DueHeads(scheduler, dispatch),
        pauses,
        Expiry(app, store, letters=letters, writer=writer),
    ]
    if app.claims is not None:
        retention = options.claim_retention
        chores.append(References(store, overlay, writer, letters, app.claims.bucket, retention))
    return Parts(
        sequences,
        overlay,
        gates,
        Admission(app, inbox, overlay, sequences, writer, letters, waiting, counters, refusals, loops),
        OperationAdmission(app, inbox, overlay, sequences, letters, counters, refusals),
        dispatch,
        timers,
        Housekeeping(chores),
        spans,
        loops,
        unreadable,
        waiting,
    )
