"""A span: what was done, from when to when, in which trace, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from time import time_ns
from typing import TypeAlias

from streams.errors import text_of
from streams.logs import HANDLED
from streams.tracing.context import TraceContext, new_span_id

Attribute: TypeAlias = str | int | bool | float

#: Of what an error says, a span has the beginning.
_MOST_SAID = 300


class SpanKind(StrEnum):
    """OpenTelemetry's kinds of a span."""

    SERVER = "SERVER"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


class Span:
    """Begins when it is made; it is reported once, when it has ended.

    One that is not `recorded` has ids only, so that later spans know that the trace is not recorded.

    Attributes:
        service: who has done it.
        name: what, as OpenTelemetry's conventions have it.
        context: its ids; its descendants' parent.
        parent: None: it begins its trace, or is one of those that do.
        links: spans of other traces that it follows from.
        attributes: what else there is to know.
        began, ended: epoch nanoseconds.
        error: why it failed; empty: it did not.
    """

    __slots__ = (
        "_report",
        "attributes",
        "began",
        "context",
        "ended",
        "error",
        "kind",
        "links",
        "name",
        "parent",
        "recorded",
        "service",
    )

    def __init__(
        self,
        kind: SpanKind,
        name: str,
        *,
        service: str,
        trace_id: int,
        parent: TraceContext | None,
        attributes: Mapping[str, Attribute],
        report: Callable[[Span], None],
        links: tuple[TraceContext, ...] = (),
        recorded: bool = True,
    ) -> None:
        self.kind = kind
        self.name = name
        self.service = service
        state = "" if parent is None else parent.state
        self.context = TraceContext(trace_id, new_span_id(), recorded, state)
        self.parent = parent
        self.links = links
        self.attributes = dict(attributes)
        self.recorded = recorded
        self.error = ""
        self.began = time_ns()
        self.ended = 0
        self._report = report

    @property
    def header(self) -> bytes:
        """The `traceparent` of what it causes."""
        return self.context.header

    def failed(self, error: BaseException) -> None:
        """Record that the span fails with an error."""
        self.attributes["error.type"] = type(error).__name__
        self.error = f"{type(error).__name__}: {text_of(error)}"[:_MOST_SAID]

    def end(self) -> None:
        """End the span now."""
        if self.recorded and not self.ended:
            self.ended = time_ns()
            self._report(self)

    def log_ids(self) -> dict[str, str]:
        """The fields that name it in the log."""
        return {"trace_id": f"{self.context.trace_id:032x}", "span_id": f"{self.context.span_id:016x}"}


def current_traceparent() -> str:
    """The `traceparent` for a call that a handler makes; empty where its attempt is not recorded."""
    span = getattr(HANDLED.get(), "span", None)
    return span.header.decode() if isinstance(span, Span) else ""
