"""The settings of traces, and what they make: a tracer, and a link to where traces are looked at."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import Field
from pydantic_settings import BaseSettings

from streams.errors import SettingsError
from streams.tracing.context import PLACE
from streams.tracing.export import Exporter, SpanExport, exporter_of
from streams.tracing.tracer import Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_ADDRESS = re.compile(r"https?://[^\s\"'<>\\]+")


class TraceSettings(BaseSettings):
    """Whether there are traces, of what, and where they go."""

    traces: Exporter = Field(
        default="none", description="where spans go: none, console, or otlp by OTEL_EXPORTER_OTLP_*"
    )
    trace_ratio: float = Field(
        default=0.1, ge=0, le=1, description="of the traces that begin here, how many are recorded"
    )
    trace_limit: float = Field(
        default=20.0, ge=0, description="how many begin in a second at most, in one process; 0: any number"
    )
    trace_url: str = Field(
        default="", description="https://...{trace_id}: where a trace is looked at; empty: pages have no link"
    )

    def check_traces(self) -> None:
        """Raises SettingsError where an address is none, or an exporter is not installed."""
        if self.trace_url and not (_ADDRESS.fullmatch(self.trace_url) and PLACE in self.trace_url):
            raise SettingsError(
                f"STEADFAUST_TRACE_URL is {self.trace_url!r}: give an address of https:// or http://"
                f" with {PLACE} in it"
            )
        if self.traces != "none":
            exporter_of(self.traces).shutdown()

    @asynccontextmanager
    async def tracing(self, group: str) -> AsyncIterator[Tracer | None]:
        """A tracer for as long as this is entered; None: there are no traces. Raises SettingsError."""
        if self.traces == "none":
            yield None
            return
        async with traced_by(exporter_of(self.traces), self, group) as tracer:
            yield tracer


@asynccontextmanager
async def traced_by(exporter: SpanExporter, settings: TraceSettings, group: str) -> AsyncIterator[Tracer]:
    """A tracer whose spans go to an exporter."""
    async with SpanExport(exporter, group=group) as export:
        yield Tracer(export.report, ratio=settings.trace_ratio, limit=settings.trace_limit)
