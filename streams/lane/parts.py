"""What a lane works with between one opening and the next, put together: each part takes what it uses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from streams.dead_letters.bursts import Bursts
from streams.dead_letters.expiry import Expiry
from streams.dead_letters.table import DeadLetters
from streams.lane.admission import Admission
from streams.lane.attempt import Attempts
from streams.lane.dispatch import Dispatch
from streams.lane.housekeeping import Chore, DueChore, Housekeeping, Seldom, inbox_expiry, log_holds
from streams.lane.loopback import Loopback
from streams.lane.references import References
from streams.lane.spans import LaneSpans
from streams.lane.timers import Timers
from streams.operator.admission import OperationAdmission
from streams.operator.operations import Operations
from streams.operator.pauses import Drains, load_pauses
from streams.ports import TP, Clock
from streams.retry.due import DueHeads
from streams.retry.gate import HandlerGate
from streams.retry.waiting import Waiting
from streams.staging.area import StagingArea
from streams.staging.arrival import Arrival
from streams.staging.inbox import Inbox
from streams.staging.loops import Loops
from streams.staging.measures import Measures
from streams.staging.outcomes import Outcomes
from streams.staging.payloads import Payloads
from streams.tracing.tracer import Tracer


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a lane itself meets."""

    staging: StagingArea
    waiting: Waiting
    admission: Admission
    operations: OperationAdmission
    dispatch: Dispatch
    timers: Timers
    housekeeping: Housekeeping
    spans: LaneSpans | None
    loops: Loops | None

    async def close(self) -> None:
        """Drop what is under way and what is staged."""
        await self.dispatch.close()
        if self.spans is not None:
            self.spans.discarded()


def parts_of(
    staging: StagingArea,
    lane: int,
    *,
    clock: Clock,
    measures: Measures,
    progress: Callable[[BaseException | None], None],
    tracer: Tracer | None,
    topics: Collection[str],
    ends: Mapping[TP, int],
    bursts: Bursts,
    refused_timers: dict[bytes, str],
    limit: Callable[[], int],
) -> Parts:
    """Those of a lane that has just recovered. `progress` is called when an async handler has finished, with
    its error if it failed. `measures` are those of the worker. Without a `tracer` there are no traces.
    `topics` are those that the lane consumes, `ends` those of partitions that it writes and has not read.
    `limit` says how many messages a transaction may hold now.
    """
    app, options = staging.app, staging.app.lane_options
    gates = {
        name: HandlerGate(name, handler.breaker, measures.get(name)) for name, handler in app.handlers.items()
    }
    in_flight: dict[bytes, deque[Arrival]] = {}
    inbox = Inbox(staging.store, staging.writes, options.inbox_retention)
    looped = app.looped.intersection(topics) if options.loopback else ()
    loops = Loops(looped, ends) if looped else None
    letters = DeadLetters(staging, bursts)
    waiting = Waiting(Outcomes(staging, loops), letters, gates)
    waiting.load(clock.now())
    due = DueHeads(waiting, in_flight, len(app.layout.partitions_of(lane)))
    load_pauses(waiting)
    spans = None if tracer is None else LaneSpans(tracer, app.layout.app_id, lane)
    attempts = Attempts(waiting, Payloads(app.claims), clock, spans)
    loopback = None if loops is None else Loopback(attempts, loops, limit)
    dispatch = Dispatch(attempts, loopback, Operations(waiting, inbox), due, progress)
    timers = Timers(staging, loops, in_flight, refused_timers)
    chores: list[Chore] = [
        Seldom(inbox_expiry(inbox, lane), lambda _: log_holds(waiting), due.drop_stale),
        timers,
        DueChore(due, dispatch),
        Drains(waiting),
        Expiry(letters),
    ]
    if app.claims is not None:
        chores.append(References(letters, app.claims.bucket))
    return Parts(
        staging,
        waiting,
        Admission(waiting, letters, inbox, loops),
        OperationAdmission(letters, inbox),
        dispatch,
        timers,
        Housekeeping(chores),
        spans,
        loops,
    )
