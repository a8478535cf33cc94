"""What workers of queues tell Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

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
