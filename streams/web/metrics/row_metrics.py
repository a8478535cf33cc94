"""What the rows of lanes, and payloads in S3, tell Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from streams.claims.checks import ClaimChecks
from streams.web.metrics.families import counter, gauge
from streams.web.overview.samples import LaneSample

_CLAIMS = (
    ("checked_in", "uploads", "Payloads written to the object store."),
    ("bytes_in", "upload_bytes", "Their bytes."),
    ("checked_out", "fetches", "Payloads given to handlers."),
    ("bytes_out", "fetch_bytes", "Their bytes."),
    ("hits", "cache_hits", "Payloads among them that the worker had at hand."),
)


def row_metrics(samples: Sequence[LaneSample], now: float) -> Iterator[Metric]:
    """Over all lanes of the worker, each as it was counted last."""
    letters = gauge("dead_letters", "Dead letters that are kept.", "handler", "state", "age")
    yield _filled(letters, (sample.letters for sample in samples))
    oldest = gauge("dead_letters_oldest_age_seconds", "Age of the oldest one.", "handler")
    yield _aged(oldest, (sample.oldest_letter for sample in samples), now)
    waiting = gauge(
        "waiting_messages", "Messages that wait, by why the first of their queue does.", "handler", "reason"
    )
    yield _filled(waiting, (sample.waiting for sample in samples))
    since = gauge("waiting_oldest_age_seconds", "How long the first of them has waited.", "handler")
    yield _aged(since, (sample.oldest_waiting for sample in samples), now)
    sagas = gauge("sagas", "Sagas.", "saga", "way", "status")
    yield _filled(sagas, (sample.sagas for sample in samples))
    stalled = gauge("sagas_stalled", "Sagas that have not ended within their limit.", "saga")
    yield _filled(stalled, ({(name,): count for name, count in each.stalled.items()} for each in samples))
    yield _number("timers_pending", "Timers that are set.", sum(each.timers for each in samples))
    yield _number("timers_overdue", "Timers that should have rung.", sum(each.overdue for each in samples))
    age = max((now - sample.at for sample in samples), default=0.0)
    yield _number("sample_age_seconds", "How old the oldest of these counts of rows is.", age)


def claim_metrics(claims: ClaimChecks) -> Iterator[Metric]:
    """Of the worker's claim checks."""
    for field, name, says in _CLAIMS:
        family = counter(f"claim_{name}", says)
        family.add_metric([], getattr(claims.counters, field))
        yield family
    yield _number("claim_in_flight_bytes", "Bytes of payloads in transfer.", claims.in_flight.held)
    yield _number("claim_waiting_transfers", "Transfers that wait for room.", claims.in_flight.waiters)


def _number(name: str, says: str, value: float) -> Metric:
    family = gauge(name, says)
    family.add_metric([], value)
    return family


def _filled(family: GaugeMetricFamily, counts: Iterable[Mapping[Any, int]]) -> GaugeMetricFamily:
    """With the sum of counts by labels."""
    total: Counter[tuple[str, ...]] = Counter()
    for each in counts:
        for labels, count in each.items():
            total[labels] += count
    for labels, count in sorted(total.items()):
        family.add_metric(labels, count)
    return family


def _aged(family: GaugeMetricFamily, times: Iterable[Mapping[str, float]], now: float) -> GaugeMetricFamily:
    """With the age of the earliest time by label."""
    earliest: dict[str, float] = {}
    for each in times:
        for label, time in each.items():
            earliest[label] = min(earliest.get(label, time), time)
    for label, time in sorted(earliest.items()):
        family.add_metric([label], max(0.0, now - time))
    return family
