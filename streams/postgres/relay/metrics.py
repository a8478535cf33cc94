"""What a relay tells Prometheus."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from streams.postgres.outbox import OutboxRow
from streams.postgres.outbox.desk import OutboxStatus
from streams.postgres.relay.counts import RelayCounts

#: Seconds; below a tenth is what one expects, above a minute an outage.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class RelayMetrics(RelayCounts):
    """Counts for a registry, which takes them once.

    `outbox_published_total` and `outbox_publish_failures_total` are this relay's; `outbox_unpublished_rows`,
    `outbox_oldest_unpublished_seconds`, `outbox_failed_rows` and `outbox_table_bytes` are the table's, which
    every relay tells alike. `outbox_publish_latency_seconds` is the time from a row's insert, at the end of
    its transaction, until it is marked.
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
        self._unpublished = Gauge("outbox_unpublished_rows", "Rows that wait: the lag.", registry=registry)
        self._oldest = Gauge(
            "outbox_oldest_unpublished_seconds", "Age of the oldest row that waits.", registry=registry
        )
        self._failed = Gauge("outbox_failed_rows", "Rows that a broker has refused.", registry=registry)
        self._bytes = Gauge("outbox_table_bytes", "The table and its indexes on the disk.", registry=registry)
        self._shards = Gauge("outbox_relay_shards", "Shards that this relay owns.", registry=registry)

    def published(self, rows: Sequence[OutboxRow], seconds: float) -> None:
        """As the base says."""
        self._published.inc(len(rows))
        for row in rows:
            self._latency.observe(row.age + seconds)

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

    def sampled(self, status: OutboxStatus) -> None:
        """How the table stands."""
        self._unpublished.set(status.unpublished)
        self._oldest.set(status.oldest_seconds)
        self._failed.set(status.failed)
        self._bytes.set(status.table_bytes)
