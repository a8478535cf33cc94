"""Spans of a lane, as an exporter of OpenTelemetry gets them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lane_worlds import Post
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streams.tracing.export import SpanExport
from streams.tracing.tracer import Tracer

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{CALLER}-01".encode()
UNSAMPLED = f"00-{TRACE}-{CALLER}-00".encode()


class Traced:
    def __init__(self, tracer: Tracer, export: SpanExport, memory: InMemorySpanExporter) -> None:
        self.tracer = tracer
        self._export = export
        self._memory = memory

    def spans(self) -> list[ReadableSpan]:
        """All that have ended, in the order in which they began. No more come after it."""
        self._export.close()
        return sorted(self._memory.get_finished_spans(), key=lambda span: span.start_time or 0)


@asynccontextmanager
async def traced(*, ratio: float = 1.0, limit: float = 0.0) -> AsyncIterator[Traced]:
    memory = InMemorySpanExporter()
    async with SpanExport(memory, group="shop") as export:
        yield Traced(Tracer(export.report, ratio=ratio, limit=limit), export, memory)


def with_trace(post: Post, header: bytes, state: bytes | None = None) -> Post:
    more = [("traceparent", header), *([("tracestate", state)] if state is not None else [])]
    return post._replace(headers=[*post.headers, *more])


def trace_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


def id_of(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str:
    return f"{span.parent.span_id:016x}" if span.parent is not None else ""


def told(span: ReadableSpan, *names: str) -> tuple[Any, ...]:
    """Some of its attributes, without the prefix of those that are ours."""
    attributes = span.attributes or {}
    return tuple(attributes.get(f"steadfaust.{name}") for name in names)


def handler_of(span: ReadableSpan) -> str:
    return str((span.attributes or {})["messaging.operation.name"])


def header_of(record: Any) -> str | None:
    value = dict(record.headers).get("traceparent")
    return None if value is None else value.decode()


def tree(spans: list[ReadableSpan]) -> dict[str, set[str]]:
    """The handlers by what has caused them: a handler, or the caller."""
    names = {id_of(span): handler_of(span) for span in spans} | {CALLER: "caller"}
    found: dict[str, set[str]] = {}
    for span in spans:
        found.setdefault(names[parent_of(span)], set()).add(handler_of(span))
    return found
