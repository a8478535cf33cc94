"""Metrics of lanes and handlers for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from streams.control.base.view import READABLE, LaneView, WorkerView
from streams.engine.life.state import LaneState
from streams.engine.staging.measures import Distribution
from streams.model.policy.breaker import BreakerState
from streams.saga.engine import IGNORED_FOR, SagaHandler

PREFIX = "steadfaust_"


def gauge(name: str, says: str, *labels: str) -> GaugeMetricFamily:
    """A number that rises and falls."""
    return GaugeMetricFamily(PREFIX + name, says, labels=labels)


def counter(name: str, says: str, *labels: str) -> CounterMetricFamily:
    """A number that only grows; its name gets `_total`."""
    return CounterMetricFamily(PREFIX + name, says, labels=labels)


def histogram(name: str, says: str, *labels: str) -> HistogramMetricFamily:
    """A distribution."""
    return HistogramMetricFamily(PREFIX + name, says, labels=labels)


def distribute(family: HistogramMetricFamily, labels: Sequence[str], found: Distribution) -> None:
    """Add a distribution: a bucket of Prometheus has all that are smaller, too."""
    bounds = [*map(str, found.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(found.counts)), strict=True))
    family.add_metric(labels, buckets, sum_value=found.total)


class _Of(NamedTuple):
    """A number of a lane; None: it has none now."""

    family: Callable[..., CounterMetricFamily | GaugeMetricFamily]
    name: str
    says: str
    value: Callable[[LaneView, float], float | None]


def _counted(name: str, field: str, says: str) -> _Of:
    """One of the lane's counters."""
    return _Of(counter, f"lane_{name}", says, lambda lane, _: getattr(lane.counters, field))


_LANE = (
    _counted(
        "messages", "handled", "Messages that handlers have seen to their end: done, waiting, given up."
    ),
    _counted("looped", "looped", "Messages among them that it has sent to itself, and handled at once."),
    _counted(
        "inbox_duplicates", "duplicates", "Messages that a handler had seen before, and did not see again."
    ),
    _counted("dead_letters", "dead_letters", "Messages given up."),
    _counted("misrouted", "misrouted", "Messages sent on to the partition of their key."),
    _counted("timers_fired", "timers", "Timers that have sent their message."),
    _counted("replayed", "replayed", "Replays of dead letters that have succeeded."),
    _counted("loop_held", "held_loop", "Turns of handlers that held the worker for over half a second."),
    _Of(
        counter, "lane_reopened", "Times that it opened again after an error.", lambda lane, _: lane.reopened
    ),
    _Of(counter, "lane_fenced", "Times among them that another owner had it.", lambda lane, _: lane.fenced),
    _Of(gauge, "lane_backlog_messages", "Messages taken and not committed.", lambda lane, _: lane.backlog),
    _Of(
        gauge,
        "lane_lag_messages",
        "Messages between what is committed and the ends of the topics.",
        lambda lane, _: lane.measures.lag if lane.state is LaneState.OPEN else None,
    ),
    _Of(
        gauge,
        "lane_oldest_message_age_seconds",
        "Age of the oldest message that was read and is not committed.",
        lambda lane, now: lane.measures.oldest_age(now) if lane.state is LaneState.OPEN else None,
    ),
    _Of(
        gauge,
        "lane_held_up_seconds",
        "For how long its reading stands at another client's open transaction; 0: it does not.",
        lambda lane, _: lane.measures.held_up_for(),
    ),
    _Of(
        gauge,
        "lane_topics_wrong",
        "Topics of the application that are gone, or have another number of partitions.",
        lambda lane, _: len(lane.measures.topics.gone) + len(lane.measures.topics.partitions),
    ),
    _Of(
        gauge,
        "lane_begins_late_messages",
        "Offsets below the begin of partitions that were opened for the first time: deleted unread.",
        lambda lane, _: sum(lane.measures.topics.late.values()),
    ),
    _Of(
        gauge,
        "lane_progress_age_seconds",
        "Since it has committed, or had nothing to do; not of a lane that recovers.",
        lambda lane, now: None if lane.measures.to_recover else max(0.0, now - lane.last_progress),
    ),
    _Of(
        gauge,
        "lane_recovery_remaining_records",
        "Changelog records that it has still to read before it opens, transaction markers counted.",
        lambda lane, _: lane.measures.to_recover,
    ),
    _Of(
        gauge,
        "lane_recovered_records",
        "Changelog records that it read when it opened last.",
        lambda lane, _: lane.recovered,
    ),
    _Of(
        gauge,
        "lane_store_bytes",
        "Its files of RocksDB.",
        lambda lane, _: lane.store.size() if lane.store is not None and lane.state in READABLE else None,
    ),
)


def lane_metrics(view: WorkerView) -> Iterator[Metric]:
    """Of each lane that the worker has."""
    lanes, now = [lane for _, lane in sorted(view.lanes.items())], view.now()
    for of in _LANE:
        family = of.family(of.name, of.says, "lane")
        for lane in lanes:
            value = of.value(lane, now)
            if value is not None:
                family.add_metric([str(lane.number)], value)
        yield family
    batches = histogram("lane_batch_messages", "Messages of a transaction.", "lane")
    commits = histogram("lane_commit_duration_seconds", "Time of a transaction, to its commit.", "lane")
    states = gauge("lane_state", "1 for the state that it is in, 0 for the others.", "lane", "state")
    for lane in lanes:
        distribute(batches, [str(lane.number)], lane.measures.batches)
        distribute(commits, [str(lane.number)], lane.measures.commits)
        for state in LaneState:
            states.add_metric([str(lane.number), state.value], lane.state is state)
    yield from (batches, commits, states)


# -- handlers ---------------------------------------------------------------------------------------------


def handler_metrics(view: WorkerView) -> Iterator[Metric]:
    """Of each handler, over all lanes of the worker."""
    yield from _attempts(view)
    yield _ignored(view)
    gates = [gate for lane in view.lanes.values() for gate in lane.gates.values()]
    yield _by_handler(
        gauge("handler_waiting_keys", "Keys with messages that wait for the handler.", "handler"),
        ((gate.handler, len(gate.queues)) for gate in gates),
    )
    yield _by_handler(
        gauge("handler_paused_partitions", "Partitions in which an operator has it paused.", "handler"),
        ((gate.handler, len(gate.pauses)) for gate in gates),
    )
    yield _by_handler(
        gauge("handler_breaker_open_lanes", "Lanes in which its circuit breaker is not closed.", "handler"),
        ((gate.handler, gate.breaker.state is not BreakerState.CLOSED) for gate in gates),
    )


def _attempts(view: WorkerView) -> Iterator[Metric]:
    durations = histogram("handler_duration_seconds", "Time of an attempt.", "handler", "outcome")
    failures = counter(
        "handler_failures",
        "Attempts that failed, by the kind of error and what follows.",
        "handler",
        "kind",
        "decision",
    )
    retries = counter("handler_retries", "Retries: tier 0 is at once, in the lane.", "handler", "tier")
    for handler, measured in sorted(view.handlers.items()):
        distribute(durations, [handler, "succeeded"], measured.succeeded)
        distribute(durations, [handler, "failed"], measured.failed)
        for (kind, decision), count in measured.failures.items():
            failures.add_metric([handler, kind, decision], count)
        for tier, count in measured.retries.items():
            retries.add_metric([handler, str(tier)], count)
    yield from (durations, failures, retries)


def _ignored(view: WorkerView) -> CounterMetricFamily:
    found = counter("saga_ignored", "Messages for sagas that had no effect at all.", "saga", "reason")
    for handler in view.application.wiring.handlers():
        if isinstance(handler, SagaHandler):
            for reason in IGNORED_FOR:
                found.add_metric([handler.saga, reason], handler.ignored[reason])
    return found


def _by_handler(family: GaugeMetricFamily, numbers: Iterable[tuple[str, int]]) -> GaugeMetricFamily:
    total: Counter[str] = Counter()
    for handler, number in numbers:
        total[handler] += number
    for handler, number in sorted(total.items()):
        family.add_metric([handler], number)
    return family
