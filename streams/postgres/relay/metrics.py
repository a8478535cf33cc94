"""Metrics of a relay."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from streams.postgres.outbox import OutboxRow
from streams.postgres.relay.counts import RelayCounts

#: Seconds; below a tenth is what one expects, above a minute an outage.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class RelayMetrics(RelayCounts):
    """Counts for a registry, which takes them once.

    `outbox_published_total`, `outbox_publish_failures_total` and `outbox_relay_shards` are this relay's.
    `outbox_publish_latency_seconds` is the time from a row's insert, at the end of its transaction, until it
    is marked. The state of the table is in `OutboxGauges`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._published = Counter("outbox_published_total", "Rows published and marked.", registry=registry)
        self._failures = Counter(
            "outbox_publish_failures_total",
            "Attempts that a broker has refused, or that are in doubt.",
            registry=registry,
        )
        self._latency = Histogram(
            "outbox_publish_latency_seconds",
            "From a row's insert until it is published.",
            registry=registry,
            buckets=_BUCKETS,
        )
        self._shards = Gauge("outbox_relay_shards", "Shards that this relay owns.", registry=registry)

    def published(self, rows: Sequence[OutboxRow], seconds: float) -> None:
        """As the base says."""
        self._published.inc(len(rows))
        for row in rows:
            self._latency.observe(row.age + seconds)

    def relayed(self, ages: Sequence[float]) -> None:
        """As the base says."""
        self._published.inc(len(ages))
        for age in ages:
            self._latency.observe(age)

    def refused(self, row: OutboxRow) -> None:
        """As the base says."""
        del row
        self._failures.inc()

    def kafka_down(self, why: str) -> None:
        """As the base says."""
        super().kafka_down(why)
        self._failures.inc()

    def shares(self, shards: int, relays: int) -> None:
        """As the base says."""
        super().shares(shards, relays)
        self._shards.set(shards)
