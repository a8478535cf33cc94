"""Spans leave the process in the background, by an exporter of OpenTelemetry's SDK.

Nothing here disturbs who reports: the queue is bounded, and what does not fit or cannot be delivered is lost,
with a line in the log. OpenTelemetry's packages are imported when an exporter is made, and not before.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Thread
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any, Literal, Self

import structlog

from streams.errors import SettingsError
from streams.tracing.context import TraceContext
from streams.tracing.span import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

log = structlog.get_logger(__name__)

#: Spans that wait at most.
MOST_WAITING = 10_000
#: Spans that are exported at once: the lanes stand still while they are made what is sent, some 50 us each.
BATCH = 64
#: After that the thread rests for so many times its processor time: it takes a tenth of a core at most.
REST = 9
#: How long a span waits for others, in seconds.
EVERY = 1.0
#: How long the end of a process waits for its last spans, in seconds.
LAST = 5.0
#: Between lines in the log that say the same, in seconds.
_QUIET = 60.0
_SCOPE = "steadfaust"
_NAMES = {"otlp": "steadfaust[otlp]", "console": "opentelemetry-sdk"}


class SpanExport:
    """A thread that hands spans to an exporter; it works while it is entered.

    Arguments:
        exporter: OpenTelemetry's, or one like it.
        group: the application that all services belong to.
    """

    def __init__(self, exporter: SpanExporter, *, group: str) -> None:
        self._exporter = exporter
        self._readable = Readable(group)
        self._waiting: deque[Span] = deque()
        self._lost = 0
        self._quiet_until = 0.0
        self._wake, self._ending = Event(), Event()
        self._thread = Thread(target=self._run, name="span-export", daemon=True)

    def report(self, span: Span) -> None:
        """Take a span that has ended. It is lost where too many wait already."""
        if len(self._waiting) >= MOST_WAITING:
            self._lost += 1
            return
        self._waiting.append(span)
        if len(self._waiting) == BATCH:
            self._wake.set()

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Deliver what waits, for a few seconds at most."""
        self._ending.set()
        self._wake.set()
        self._thread.join(LAST)
        lost, self._lost = self._lost + len(self._waiting), 0
        self._waiting.clear()
        # It ends an export that waits to try again; the thread is a daemon, should that not help.
        self._exporter.shutdown()
        if lost or self._thread.is_alive():
            log.warning("spans_lost", spans=lost, why=f"not delivered by the end, and {LAST:g} s more")

    def _run(self) -> None:
        ends = False
        while not ends:
            self._wake.wait(EVERY)
            self._wake.clear()
            ends = self._ending.is_set()  # what is reported before the end is among what waits now
            while self._waiting:
                began = thread_time()
                self._deliver()
                self._ending.wait(REST * (thread_time() - began))

    def _deliver(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            why = self._export(batch)
        except Exception as error:  # noqa: BLE001 - an exporter's mistake is no reason to stop
            why = f"{type(error).__name__}: {error}"
        if why:
            self._lost += len(batch)
        self._tell(why or f"over {MOST_WAITING} waited")

    def _export(self, batch: Sequence[Span]) -> str:
        """Why the spans were not delivered; empty: they were."""
        result = self._exporter.export([self._readable.span(span) for span in batch])
        return "" if result.name == "SUCCESS" else "the exporter could not deliver them"

    def _tell(self, why: str) -> None:
        if not self._lost or monotonic() < self._quiet_until:
            return
        self._quiet_until = monotonic() + _QUIET
        lost, self._lost = self._lost, 0
        log.warning("spans_lost", spans=lost, why=why, action="is the collector up, are OTEL_* right?")


class Readable:
    """Makes spans what exporters of OpenTelemetry take: each service is a resource of its own."""

    def __init__(self, group: str) -> None:
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._group = group
        self._scope = InstrumentationScope(_SCOPE)
        self._resources: dict[str, Resource] = {}

    def span(self, span: Span) -> ReadableSpan:
        """A span that has ended."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode

        return ReadableSpan(
            span.name,
            context=_context(span.context),
            parent=None if span.parent is None else _context(span.parent, remote=True),
            resource=self._resource(span.service),
            attributes=span.attributes,
            links=[Link(_context(linked, remote=True)) for linked in span.links],
            kind=SpanKind[span.kind.value],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.began,
            end_time=span.ended,
            instrumentation_scope=self._scope,
        )

    def _resource(self, service: str) -> Resource:
        found = self._resources.get(service)
        if found is None:
            from opentelemetry.sdk.resources import Resource

            # A name in the environment is kept: that is how all workers appear as one service.
            own = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
            about = {**own, "service.namespace": self._group, "process.pid": str(os.getpid())}
            found = self._resources[service] = Resource.create({**about})
        return found


def _context(context: TraceContext, *, remote: bool = False) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(context.trace_id, context.span_id, remote, TraceFlags(context.sampled), state)


def exporter_of(kind: Literal["console", "otlp"]) -> SpanExporter:
    """An exporter; that of OTLP reads OTEL_EXPORTER_OTLP_* itself. Raises SettingsError where its package is
    missing.
    """
    try:
        made: SpanExporter = _MAKE[kind]()
    except ImportError as error:
        raise SettingsError(
            f"STEADFAUST_TRACES is {kind}, and {error.name} is not installed: pip install '{_NAMES[kind]}'"
        ) from error
    return made


def _otlp() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    made = OTLPSpanExporter()
    # From here on it would write a line for each try; ours says it once.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    return made


def _console() -> Any:
    import sys

    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    return ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n")


_MAKE: dict[str, Callable[[], Any]] = {"console": _console, "otlp": _otlp}
