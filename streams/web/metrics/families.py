"""Metrics as Prometheus's client writes them, all under one prefix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from streams.staging.measures import Distribution

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
