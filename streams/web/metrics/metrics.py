"""A worker's metrics for Prometheus. A scrape reads counters that exist; nothing is counted here: lanes and
handlers have counted already (`lane/measures.py`, `staging/measures.py`), rows are counted by the sampler.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from streams.web.base.view import Problem, WorkerView
from streams.web.metrics.families import counter, gauge
from streams.web.metrics.lane_metrics import handler_metrics, lane_metrics
from streams.web.metrics.row_metrics import claim_metrics, row_metrics
from streams.web.overview.overview import warnings, why_not_ready
from streams.web.overview.samples import Sampler


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
    copied = counter("standby_records", "Changelog records that a follower of a lane has copied.", "lane")
    for number, standby in sorted(view.standbys.items()):
        copied.add_metric([str(number)], standby.records)
    yield copied
