"""The part of one worker in the overview."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from time import monotonic

from streams.control.base.view import LaneView, StandbyView, WorkerView
from streams.control.overview.flow_answers import (
    FlowProgress,
    HandlerPart,
    LaneCounts,
    LanePart,
    LetterErrors,
    NamedSaga,
    StandbyPart,
    TopicPart,
    Warned,
    WorkerPart,
    worker_link,
)
from streams.control.overview.health import breakers, why_stuck
from streams.control.overview.overview import warnings, why_not_ready
from streams.control.overview.rates import RatePoller, Rates
from streams.control.overview.samples import LaneSample
from streams.control.sagas.saga_answers import SagaAnswer
from streams.engine.waiting.dead_letters.row import LetterState
from streams.engine.waiting.gate import HandlerGate
from streams.errors import ClusterUnavailable
from streams.model.envelope import rfc3339
from streams.model.policy.breaker import BreakerState


def worker_part(view: WorkerView, looks: RatePoller, samples: Mapping[int, LaneSample]) -> WorkerPart:
    """All that the worker knows by itself. `samples` are its counts of rows, by lane."""
    short, long = looks.rates()
    stuck = {lane.number for lane in view.stuck()}
    lanes = [_lane(view, lane, short, stuck=number in stuck) for number, lane in sorted(view.lanes.items())]
    counts = [lane_counts(lane, each) for lane, each in sorted(samples.items()) if lane in view.lanes]
    handlers = _handlers(view, counts, short, long)
    return WorkerPart(
        url=view.url,
        slot=view.slot,
        ready=not why_not_ready(view),
        measured=view.measured,
        span=round(short.span, 1),
        owns=sorted(lane for lane, url in view.assignment.owners.items() if url == view.url),
        lanes=lanes,
        standbys=[_standby(each) for _, each in sorted(view.standbys.items())],
        topics=_topics(view, short, long),
        handlers=handlers,
        counts=counts,
        away=_away(view),
        warnings=_warnings(view),
        pace=looks.pace.part(),
        version=_version(),
    )


@cache
def _version() -> str:
    return version("steadfaust")


def lane_counts(lane: int, sample: LaneSample) -> LaneCounts:
    """Counts of a lane, for the overview."""
    letters: Counter[str] = Counter()
    sagas: Counter[str] = Counter()
    waiting: dict[str, dict[str, int]] = {}
    for (handler, state, _), count in sample.letters.items():
        if state != LetterState.DISCARDED:  # it can be restored, and needs no decision
            letters[handler] += count
    errors: dict[str, list[LetterErrors]] = {}
    for (handler, error, place), (count, text) in sample.letter_errors.items():
        errors.setdefault(handler, []).append(LetterErrors(error=error, place=place, text=text, count=count))
    for (handler, reason), count in sample.waiting.items():
        waiting.setdefault(handler, {})[reason] = count
    for (_, _, status), count in sample.sagas.items():
        sagas[status] += count
    return LaneCounts(
        lane=lane,
        at=sample.at,
        waiting=waiting,
        oldest=dict(sample.oldest_waiting),
        letters_since=dict(sample.undecided_since),
        letters=dict(letters),
        letter_errors=errors,
        sagas=dict(sagas),
        stalled=sample.overdue_sagas,
        held_sagas=dict(sample.held_sagas),
        failed_saga=_named(sample.failed_saga),
        overdue_saga=_named(sample.overdue_saga),
    )


def _named(saga: SagaAnswer | None) -> NamedSaga | None:
    if saga is None:
        return None
    why = saga.stuck or saga.blocked or f"it waits for {', '.join(saga.pending)}"
    return NamedSaga(id=saga.id, why=why, since=saga.changed_at if saga.stuck else saga.created_at)


def progress(total: int, left: int, seconds: float) -> FlowProgress | None:
    """Of a copy that had so much to do; None: nothing is left."""
    if left <= 0:
        return None
    copied = max(0, total - left)
    rate = copied / seconds if seconds > 0 else 0.0
    return FlowProgress(
        copied=copied,
        total=max(total, left),
        percent=int(100 * copied / max(total, left)),
        rate=round(rate, 1),
        seconds_left=round(left / rate, 1) if rate else None,
    )


def _lane(view: WorkerView, lane: LaneView, rates: Rates, *, stuck: bool) -> LanePart:
    total, since = lane.measures.recovery
    age = lane.measures.oldest_age(view.now())
    return LanePart(
        lane=lane.number,
        state=lane.state.value,
        partitions=tuple(view.application.layout.partitions_of(lane.number)),
        backlog=lane.backlog,
        lag=lane.measures.lag,
        oldest=None if age is None else round(age, 1),
        commits=rates.commits(lane.number),
        idle=round(max(0.0, view.now() - lane.last_progress), 1),
        stuck=stuck,
        error="" if lane.error is None else f"{type(lane.error).__name__}: {lane.error}",
        recovery=progress(total, lane.measures.to_recover, monotonic() - since),
    )


def _standby(standby: StandbyView) -> StandbyPart:
    (total, since), behind = standby.to_copy, standby.behind
    # A lane that keeps up has some lag at any time, too: the number alone shows that.
    copying = progress(total, behind or 0, monotonic() - since) if total else None
    return StandbyPart(lane=standby.number, behind=behind, copying=copying)


def _topics(view: WorkerView, short: Rates, long: Rates) -> list[TopicPart]:
    return [
        TopicPart(
            topic=topic,
            rate=short.topic(topic),
            rate_minute=long.topic(topic),
            lag=short.lag(topic),
            lag_before=long.lag_before(topic),
        )
        for topic in view.application.routes
    ]


def _handlers(view: WorkerView, counts: Iterable[LaneCounts], short: Rates, long: Rates) -> list[HandlerPart]:
    seen = [name for each in counts for name in sorted([*each.letters, *each.waiting])]
    paused, breakers = _gates(view)
    causes = _causes(view)
    return [
        HandlerPart(
            handler=name,
            rate=short.handler(name),
            rate_minute=long.handler(name),
            failures=long.failures(name),
            durations=long.durations(name),
            paused=paused[name],
            breakers=breakers[name],
            pause=cause.get("pause", ""),
            since=cause.get("since", ""),
            error=cause.get("error", ""),
        )
        for name in dict.fromkeys([*view.application.handlers, *seen])
        for cause in (causes.get(name, {}),)
    ]


def _gates(view: WorkerView) -> tuple[Counter[str], Counter[str]]:
    """Of each handler, partitions in which it is paused, and lanes in which its breaker is not closed."""
    paused: Counter[str] = Counter()
    breakers: Counter[str] = Counter()
    for lane in view.lanes.values():
        for gate in lane.gates.values():
            paused[gate.handler] += len(gate.pauses)
            breakers[gate.handler] += gate.breaker.state is not BreakerState.CLOSED
    return paused, breakers


def _causes(view: WorkerView) -> dict[str, dict[str, str]]:
    """Of each handler, its newest pause, or else since when a breaker is open, and its last error."""
    found: dict[str, dict[str, str]] = {}
    gates: dict[str, list[HandlerGate]] = {}
    for lane in view.lanes.values():
        for gate in lane.gates.values():
            gates.setdefault(gate.handler, []).append(gate)
    for handler, all_of_it in gates.items():
        pauses = [pause for gate in all_of_it for pause in gate.pauses.values()]
        opened = [gate.breaker.since for gate in all_of_it if gate.breaker.since]
        failures = [gate.failures[-1] for gate in all_of_it if gate.failures]
        cause = found[handler] = {}
        if pauses:
            pause = max(pauses, key=lambda each: each.since_ms)
            cause |= {"pause": f"By {pause.who}: {pause.why}", "since": rfc3339(pause.since_ms / 1000)}
        elif opened:
            cause["since"] = rfc3339(min(opened))
        if failures:
            cause["error"] = max(failures, key=lambda each: each.at).error
    return found


def _away(view: WorkerView) -> dict[int, float]:
    """Lanes without progress because Kafka does not answer, each with the seconds since its last one."""
    stuck = (lane for lane in view.stuck() if isinstance(lane.error, ClusterUnavailable))
    return {lane.number: round(max(0.0, view.now() - lane.last_progress), 1) for lane in stuck}


def _warnings(view: WorkerView) -> list[Warned]:
    """Warnings of its health: each is mended at the worker, or names the place. Breakers are reported for all
    workers together.
    """
    away = {why_stuck(lane, view.now()) for lane in view.stuck() if lane.number in _away(view)}
    told_together = breakers(gate for lane in view.lanes.values() for gate in lane.gates.values())
    link, name = worker_link(view.url), view.url.partition("://")[2]
    grave = [
        Warned(text=f"{name} is not ready: {why}", link=link, where="the worker", grave=True)
        for why in why_not_ready(view)
        if why not in away
    ]
    return grave + [
        Warned(text=text, link=link, where=f"worker {name}")
        for text in warnings(view)
        if text not in told_together
    ]
