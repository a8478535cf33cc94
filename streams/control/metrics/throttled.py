"""The metric of what quotas of the brokers hold back, of any process that has clients of Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class ThrottledSeconds(Collector):
    """Collects `seconds`, by kind of request, as they are at each scrape."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        found = CounterMetricFamily(
            "steadfaust_kafka_throttled_seconds",
            "Seconds that quotas of the brokers have held back.",
            labels=["request"],
        )
        for request, seconds in sorted(self._seconds.items()):
            found.add_metric([request], seconds)
        yield found
