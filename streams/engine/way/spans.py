"""Traces in a lane: which trace a message belongs to, and what became of its handlers' spans.

A span is of one attempt. It ends when the attempt is decided on, and is reported when it is known what
became of the transaction: it says so. What a lane has not committed runs again, as another span (ADR 40).
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

#: What became of the transaction that an attempt's outcome was to be in.
TRANSACTION = "steadfaust.transaction"


class LaneSpans:
    """Spans of a lane between one opening and the next. `group` is the consumer group's name."""

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
        """The span of a handler's attempt, the first one has number 1; None: the message is not recorded."""
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
            # Days may lie between, and what is done now is another thing than what failed: another trace.
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
        """A transaction is committed: report what was in it."""
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
        """The lane drops what is staged. Of what was in a transaction nobody knows: it may be committed."""
        for entry, span in self._pending:
            span.attributes[TRANSACTION] = "unknown" if entry.in_commit else "discarded"
            self._tracer.report(span)
        self._pending = []


def _replay(record: Record | Letter) -> bytes:
    """Return a name for the replay that brought a record; empty if it was not replayed."""
    if isinstance(record, Letter):  # no handler had seen it, or that one is gone: it is taken anew
        return b"\0replay %d" % len(record.history)
    if isinstance(record, WaitingMessage) and record.letter:
        return b"\0replay %d" % record.since_ms
    return b""
