"""A worker's metrics for Prometheus. A scrape reads counters that exist; nothing is counted here: lanes and
handlers have counted already (`measures.py` in the engine), rows are counted by the sampler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streams.control.base.view import Problem, WorkerView
from streams.control.metrics.lane_metrics import counter, gauge, handler_metrics, lane_metrics
from streams.control.metrics.throttled import ThrottledSeconds
from streams.control.overview.overview import warnings, why_not_ready
from streams.control.overview.samples import LaneSample, Sampler
from streams.logs import detached
from streams.model.claim_checks import ClaimChecks


class WorkerMetrics:
    """The metrics of one worker."""

    def __init__(self, view: WorkerView) -> None:
        self._view = view
        self.sampler = Sampler(view)
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(view, self.sampler))
        ProcessCollector(registry=self._registry)

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Count rows for as long as this is open, where the worker is to be measured."""
        if not self._view.measured:
            yield
            return
        async with self.sampler.running():
            yield

    def scrape(self) -> bytes:
        """All metrics, in Prometheus's text format. Raises Problem 404 where nothing is measured."""
        if not self._view.measured:
            raise Problem(404, "not_measured", "this worker runs with STEADFAUST_METRICS=false")
        return generate_latest(self._registry)


class _Collector(Collector):
    def __init__(self, view: WorkerView, sampler: Sampler) -> None:
        self._view = view
        self._sampler = sampler

    def collect(self) -> Iterator[Metric]:
        view = self._view
        claims = view.application.claims
        yield from _worker(view)
        yield from lane_metrics(view)
        yield from handler_metrics(view)
        yield from row_metrics(list(self._sampler.lanes.values()), view.now())
        if claims is not None:
            yield from claim_metrics(claims)


def _worker(view: WorkerView) -> Iterator[Metric]:
    info = gauge("worker_info", "1; the labels say which worker.", "app_id", "slot")
    info.add_metric([view.application.layout.app_id, str(view.slot)], 1)
    yield info
    ready = gauge("worker_ready", "1 while /health/ready answers 200.")
    ready.add_metric([], not why_not_ready(view))
    yield ready
    degraded = gauge("worker_degraded", "1 while /health/ready has warnings.")
    degraded.add_metric([], bool(warnings(view)))
    yield degraded
    lost = counter("log_lines_dropped", "Lines of the log that could not be written.", "stream")
    for stream, lines in sorted(detached.dropped().items()):
        lost.add_metric([stream], lines)
    yield lost
    yield from ThrottledSeconds(view.throttled).collect()
    copied = counter("standby_records", "Changelog records that a follower of a lane has copied.", "lane")
    for number, standby in sorted(view.standbys.items()):
        copied.add_metric([str(number)], standby.records)
    yield copied


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
