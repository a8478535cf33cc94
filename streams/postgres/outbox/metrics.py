"""Metrics of the outbox's table, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from streams.postgres.outbox.operations import OutboxStatus


class OutboxGauges:
    """Gauges of the table, which a registry takes once; every process that looks tells them alike.

    `outbox_unpublished_rows`, `outbox_oldest_unpublished_seconds`, `outbox_failed_rows` and
    `outbox_table_bytes`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._unpublished = Gauge("outbox_unpublished_rows", "Rows that wait: the lag.", registry=registry)
        self._oldest = Gauge(
            "outbox_oldest_unpublished_seconds", "Age of the oldest row that waits.", registry=registry
        )
        self._failed = Gauge("outbox_failed_rows", "Rows that a broker has refused.", registry=registry)
        self._bytes = Gauge("outbox_table_bytes", "The table and its indexes on the disk.", registry=registry)

    def sampled(self, status: OutboxStatus) -> None:
        """State of the table."""
        self._unpublished.set(status.unpublished)
        self._oldest.set(status.oldest_seconds)
        self._failed.set(status.failed)
        self._bytes.set(status.table_bytes)
