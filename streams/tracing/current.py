"""The trace of what runs now, for calls to the outside."""

from __future__ import annotations

from streams.logs import HANDLED
from streams.tracing.span import Span


def current_traceparent() -> str:
    """The `traceparent` for a call that a handler makes; empty where its attempt is not recorded."""
    span = getattr(HANDLED.get(), "span", None)
    return span.header.decode() if isinstance(span, Span) else ""
