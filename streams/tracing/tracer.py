"""Decide which traces are recorded, and record spans of requests. A caller's decision is kept; else a part
of the traces that begin here is recorded, and so many a second at most, so that a burst costs no more than
its share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic

from streams.tracing.context import TraceContext, new_trace_id, parse
from streams.tracing.span import Attribute, Span, SpanKind

_IDS = 1 << 64


class Tracer:
    """Of one process.

    Arguments:
        report: takes a span that has ended, and returns at once.
        ratio: of the traces that begin here, how many are recorded; 0 to 1.
        limit: how many a second at most; 0: any number.
    """

    def __init__(self, report: Callable[[Span], None], *, ratio: float, limit: float = 0.0) -> None:
        self.report = report
        self.ratio = ratio
        self._id_bound = int(ratio * _IDS)
        self._limit = limit
        self._left = limit
        self._filled = monotonic()

    def has_room(self) -> bool:
        """Whether one more trace may begin; it counts as begun."""
        if not self._limit:
            return True
        now = monotonic()
        self._left = min(self._limit, self._left + (now - self._filled) * self._limit)
        self._filled = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def request(self, header: bytes | None, state: bytes | None, name: str, service: str) -> Span | None:
        """The span of a request that has just come with these headers. None: its caller does not record."""
        parent = None if header is None else parse(header, state)
        if parent is not None:
            if not parent.sampled:
                return None
            return self._span(SpanKind.SERVER, name, service, parent.trace_id, parent, {})
        trace_id = new_trace_id()
        recorded = (trace_id & (_IDS - 1)) < self._id_bound and self.has_room()
        return self._span(SpanKind.SERVER, name, service, trace_id, None, {}, recorded=recorded)

    def publish(self, cause: Span, topic: str, attributes: Mapping[str, Attribute]) -> Span:
        """The span of a message that is handed over, as a part of `cause`."""
        return self._span(
            SpanKind.PRODUCER,
            f"publish {topic}",
            cause.service,
            cause.context.trace_id,
            cause.context,
            {
                "messaging.system": "kafka",
                "messaging.operation.name": "publish",
                "messaging.operation.type": "send",
                "messaging.destination.name": topic,
                **attributes,
            },
            recorded=cause.recorded,
        )

    def _span(
        self,
        kind: SpanKind,
        name: str,
        service: str,
        trace_id: int,
        parent: TraceContext | None,
        attributes: Mapping[str, Attribute],
        *,
        recorded: bool = True,
    ) -> Span:
        return Span(
            kind,
            name,
            service=service,
            trace_id=trace_id,
            parent=parent,
            attributes=attributes,
            report=self.report,
            recorded=recorded,
        )
