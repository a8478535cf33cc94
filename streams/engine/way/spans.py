"""Traces in a lane: assigns messages to traces, and reports a span for each attempt.

A span ends when its attempt is settled. It is reported once the result of the transaction is known, and
states that result. Work that was not committed runs again, as another span (docs/adr/0040).
"""

from __future__ import annotations

from functools import partial
from time import time_ns

from streams.engine.staging.arrival import Arrival
from streams.engine.staging.entry import Entry
from streams.engine.waiting.dead_letters.row import Letter
from streams.engine.waiting.queue import WaitingMessage
from streams.model.envelope import CORRELATION, TRACEPARENT, TRACESTATE
from streams.ports import Record
from streams.tracing.attempts import MessageTrace
from streams.tracing.context import TraceContext, is_chosen, parse, says_unsampled, trace_id_of
from streams.tracing.span import Attribute, Span
from streams.tracing.tracer import Tracer

#: The result of the transaction with the attempt's outcome: committed, unknown or discarded.
TRANSACTION = "steadfaust.transaction"


class LaneSpans:
    """Spans of a lane from one opening to the next. `group` is the consumer group's name."""

    def __init__(self, tracer: Tracer, group: str, lane: int) -> None:
        self._tracer = tracer
        self._common: dict[str, Attribute] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": group,
            "steadfaust.lane": lane,
        }
        self._pending: list[tuple[Entry, Span]] = []

    def begin_attempt(self, arrival: Arrival, handler: str, attempt: int) -> Span | None:
        """Begin the span of a handler's attempt, counted from 1. None: its trace is not recorded."""
        if arrival.trace is None:
            arrival.trace = self._trace_of(arrival)
        return None if arrival.trace is None else arrival.trace.begin(handler, attempt)

    def _trace_of(self, arrival: Arrival) -> MessageTrace | None:
        headers = arrival.envelope.headers
        header = headers.get(TRACEPARENT)
        if header is not None and says_unsampled(header):
            return None
        context = None if header is None else parse(header, headers.get(TRACESTATE))
        if context is None:
            chosen = is_chosen(headers.get(CORRELATION) or arrival.envelope.id_bytes, self._tracer.ratio)
        else:
            chosen = context.sampled
        return self._trace(arrival, context) if chosen else None

    def _trace(self, arrival: Arrival, context: TraceContext | None) -> MessageTrace:
        record, identity = arrival.record, arrival.envelope.identity
        trace_id = context.trace_id if context is not None else trace_id_of(identity)
        attributes = self._attributes(arrival)
        report = partial(self._ended, arrival.entry)
        recorded = context is not None or self._tracer.has_room()
        links: tuple[TraceContext, ...] = ()
        if again := _replay(record):
            # A replay may run days later, and does something else than what failed, so it gets its own trace.
            attributes["steadfaust.replay"] = True
            attributes["steadfaust.replay.of_trace"] = f"{trace_id:032x}"
            links, context = () if context is None else (context,), None
            trace_id = trace_id_of(identity + again)
        return MessageTrace(
            record.topic, trace_id, context, attributes, report, links=links, recorded=recorded
        )

    def _attributes(self, arrival: Arrival) -> dict[str, Attribute]:
        record, envelope = arrival.record, arrival.envelope
        found = {
            **self._common,
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
            "messaging.message.id": envelope.id,
            "messaging.message.conversation_id": envelope.correlation_id,
        }
        if saga := getattr(arrival.message, "saga_id", None):
            found["steadfaust.saga_id"] = str(saga)
        return found

    def _ended(self, entry: Entry, span: Span) -> None:
        self._pending.append((entry, span))

    def committed(self) -> None:
        """Report the spans of the transaction that was just committed."""
        if not self._pending:
            return
        now, left = time_ns(), []
        for entry, span in self._pending:
            if entry.in_commit:
                span.attributes[TRANSACTION] = "committed"
                span.attributes["steadfaust.committed_after_ms"] = (now - span.ended) / 1e6
                self._tracer.report(span)
            else:
                left.append((entry, span))
        self._pending = left

    def discarded(self) -> None:
        """Report all open spans when the lane drops what is staged. Those in a transaction are `unknown`,
        because it may have been committed.
        """
        for entry, span in self._pending:
            span.attributes[TRANSACTION] = "unknown" if entry.in_commit else "discarded"
            self._tracer.report(span)
        self._pending = []


def _replay(record: Record | Letter) -> bytes:
    """Return a name for the replay that brought a record; empty if it was not replayed."""
    if isinstance(record, Letter):  # no handler had seen it, or that handler is gone, so it starts over
        return b"\0replay %d" % len(record.history)
    if isinstance(record, WaitingMessage) and record.letter:
        return b"\0replay %d" % record.since_ms
    return b""
