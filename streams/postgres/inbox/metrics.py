"""Metrics of consumers with an inbox."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_LABELS = ("consumer_name", "event_type")
#: Seconds; a handler's writes take one, what it asks the outside takes another.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Types come from messages, so anybody can invent them: those beyond so many count as one.
MOST_TYPES = 500
OTHER = "other"


class InboxMetrics:
    """The metrics of all inboxes of a process; a registry takes them once.

    `consumer_inbox_processed_total`, `consumer_inbox_duplicates_total` and
    `consumer_inbox_processing_duration_seconds`, by `consumer_name` and `event_type`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._processed = Counter(
            "consumer_inbox_processed_total", "Events handled and committed.", _LABELS, registry=registry
        )
        self._duplicates = Counter(
            "consumer_inbox_duplicates_total",
            "Events that had been handled before.",
            _LABELS,
            registry=registry,
        )
        self._duration = Histogram(
            "consumer_inbox_processing_duration_seconds",
            "Time of the handler for one event, commit not counted.",
            _LABELS,
            registry=registry,
            buckets=_BUCKETS,
        )
        self._types: set[str] = set()

    def processed(self, consumer: str, event_type: str, seconds: float) -> None:
        """An event was handled, and that is committed."""
        labels = consumer, self._bounded(event_type)
        self._processed.labels(*labels).inc()
        self._duration.labels(*labels).observe(seconds)

    def duplicate(self, consumer: str, event_type: str) -> None:
        """An event came again and was dropped."""
        self._duplicates.labels(consumer, self._bounded(event_type)).inc()

    def _bounded(self, event_type: str) -> str:
        if event_type in self._types:
            return event_type
        if len(self._types) >= MOST_TYPES:
            return OTHER
        self._types.add(event_type)
        return event_type
