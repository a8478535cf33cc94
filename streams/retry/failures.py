"""How a failed attempt shows: in the log, in counts, in its span, and in the topic of its retry."""

from __future__ import annotations

import structlog

from streams.dead_letters.record import message_bytes
from streams.errors import text_of
from streams.model.envelope import rfc3339
from streams.policy.retry import FailureKind, Later
from streams.ports import TP, Outgoing
from streams.retry.gate import HandlerGate
from streams.staging.arrival import Attempt

log = structlog.get_logger(__name__)


def note_failure(
    gate: HandlerGate,
    attempt: Attempt,
    error: Exception,
    kind: FailureKind,
    decision: str,
    delay: float = 0.0,
) -> None:
    """Log and count that a handler has failed, and what follows, after `delay` seconds."""
    gate.failed(str(kind), decision)
    arrival = attempt.arrival
    if arrival.span is not None:
        arrival.span.failed(error)
        arrival.span.attributes["steadfaust.failure"] = str(kind)
        arrival.span.attributes["steadfaust.decision"] = decision
    log.warning(
        "handler_failed",
        handler=attempt.handler.name,
        error=f"{type(error).__name__}: {text_of(error)}",
        kind=str(kind),
        attempt=attempt.attempts,
        decision=decision,
        delay=delay,
        topic=arrival.record.topic,
        partition=arrival.record.partition,
        offset=arrival.record.offset,
        **arrival.log_ids(),
    )


def mirror_to_retry_topic(attempt: Attempt, error: Exception, later: Later) -> None:
    """Add the record to its retry topic, as it came. What is tried again is the row of the waiting message,
    of the same transaction.
    """
    arrival, handler = attempt.arrival, attempt.handler
    record = arrival.record
    added = [
        ("retry-service", handler.name.partition(".")[0].encode()),
        ("retry-handler", handler.name_bytes),
        ("retry-attempt", b"%d" % attempt.attempts),
        ("retry-due", rfc3339(later.due).encode()),
        ("retry-error-type", type(error).__name__.encode()),
        ("retry-error-message", message_bytes(error)),
        ("retry-source-partition", b"%d" % record.partition),
        ("retry-source-offset", b"%d" % record.offset),
    ]
    outgoing = Outgoing(record.key, record.value, [*record.headers, *added])
    arrival.entry.sends.append((TP(arrival.route.retries[later.tier - 1], 0), outgoing))
