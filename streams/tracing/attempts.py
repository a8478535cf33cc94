"""Spans of handlers' attempts at one message."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streams.tracing.context import TraceContext
from streams.tracing.span import Attribute, Span, SpanKind


class MessageTrace:
    """The trace that a message belongs to, for as long as handlers see it.

    Arguments:
        topic: of the message.
        parent: what caused it; None: unknown.
        attributes: what all spans have.
        report: takes a span that has ended.
        links: what it follows from, in other traces.
        recorded: False: there are ids only, for what the message causes.
    """

    __slots__ = ("_attributes", "_links", "_parent", "_recorded", "_report", "_topic", "_trace_id")

    def __init__(
        self,
        topic: str,
        trace_id: int,
        parent: TraceContext | None,
        attributes: Mapping[str, Attribute],
        report: Callable[[Span], None],
        *,
        links: tuple[TraceContext, ...] = (),
        recorded: bool = True,
    ) -> None:
        self._topic = topic
        self._trace_id = trace_id
        self._parent = parent
        self._attributes = attributes
        self._report = report
        self._links = links
        self._recorded = recorded

    def begin(self, handler: str, attempt: int) -> Span:
        """The span of an attempt, the first one has number 1."""
        service = handler.partition(".")[0]
        span = Span(
            SpanKind.CONSUMER,
            f"{handler} {self._topic}",
            service=service,
            trace_id=self._trace_id,
            parent=self._parent,
            attributes=self._attributes,
            report=self._report,
            links=self._links,
            recorded=self._recorded,
        )
        span.attributes["messaging.operation.name"] = handler
        span.attributes["steadfaust.service"] = service
        span.attributes["steadfaust.attempt"] = attempt
        return span
