"""What a dead letter is made of: the original bytes, key and headers, unchanged, and why it came here."""

from __future__ import annotations

import traceback

from streams.envelope import rfc3339
from streams.ports import Outgoing, Record

#: A stack trace in a header must not push the message over the broker's limit (mission, mistake 10).
MAX_TRACE_BYTES = 8 * 1024
MAX_MESSAGE_BYTES = 1024


def dead_letter(
    record: Record, error: BaseException, *, group: str, handler: str, now: float, retries: int = 0
) -> Outgoing:
    """The record as it came, with `dlq-*` headers added. `now` in epoch seconds; `handler` may be empty."""
    trace = "".join(traceback.format_exception(error)).encode("utf-8", "replace")[-MAX_TRACE_BYTES:]
    added = [
        ("dlq-error-type", type(error).__name__.encode()),
        ("dlq-error-message", str(error).encode("utf-8", "replace")[:MAX_MESSAGE_BYTES]),
        ("dlq-stack-trace", trace),
        ("dlq-retry-count", b"%d" % retries),
        ("dlq-failed-at", rfc3339(now).encode()),
        ("dlq-source-topic", record.topic.encode()),
        ("dlq-source-partition", b"%d" % record.partition),
        ("dlq-source-offset", b"%d" % record.offset),
        ("dlq-consumer-group", group.encode()),
        ("dlq-handler", handler.encode()),
        ("dlq-original-timestamp", b"%d" % record.timestamp),
    ]
    return Outgoing(record.key, record.value, [*record.headers, *added])
