"""Metrics of the workers of queues, and of the queues themselves."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from streams.postgres.queue.operations import QueueStatus

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


class QueueMetrics:
    """The metrics of all queues of a process; a registry takes them once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.done = Counter("queue_jobs_done_total", "Jobs done.", ["queue"], registry=registry)
        self.retried = Counter(
            "queue_jobs_retried_total",
            "Tries that failed and are followed by another.",
            ["queue"],
            registry=registry,
        )
        self.failed = Counter(
            "queue_jobs_failed_total", "Jobs marked as not processed.", ["queue"], registry=registry
        )
        self.latency = Histogram(
            "queue_job_latency_seconds",
            "From when a job was enqueued to when it was done.",
            ["queue"],
            registry=registry,
            buckets=_BUCKETS,
        )


class QueueGauges:
    """Gauges of the queues' table, which a registry takes once; every process that looks tells them alike.

    `queue_jobs`, by queue and state, and `queue_oldest_ready_seconds`, by queue.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs = Gauge("queue_jobs", "Jobs by their state.", ["queue", "state"], registry=registry)
        self._oldest = Gauge(
            "queue_oldest_ready_seconds",
            "For how long the oldest job that may be taken has waited for a worker.",
            ["queue"],
            registry=registry,
        )

    def sampled(self, standings: Sequence[QueueStatus]) -> None:
        """States of the queues; one that is gone is dropped."""
        self._jobs.clear()
        self._oldest.clear()
        for each in standings:
            for state, jobs in each.jobs.items():
                self._jobs.labels(each.queue, state).set(jobs)
            self._oldest.labels(each.queue).set(each.oldest_ready)
