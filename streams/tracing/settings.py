"""Settings of traces, and the tracer that they configure."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings

from streams.errors import SettingsError
from streams.tracing.context import PLACE
from streams.tracing.tracer import Tracer

_ADDRESS = re.compile(r"https?://[^\s\"'<>\\]+")


class TraceSettings(BaseSettings):
    """Settings of traces."""

    traces: Literal["none", "console", "otlp"] = Field(
        default="none",
        description="exporter of spans: none, console, or otlp (configured by OTEL_EXPORTER_OTLP_*)",
    )
    trace_ratio: float = Field(
        default=0.1, ge=0, le=1, description="fraction of the traces starting here that is recorded"
    )
    trace_limit: float = Field(
        default=20.0, ge=0, description="maximum traces that start per second and process (0: no limit)"
    )
    trace_url: str = Field(
        default="", description="link to a trace, such as https://...{trace_id} (empty: pages have no link)"
    )

    def check_traces(self) -> None:
        """Raise SettingsError if trace_url is not usable, or the exporter is not installed."""
        if self.trace_url and not (_ADDRESS.fullmatch(self.trace_url) and PLACE in self.trace_url):
            raise SettingsError(
                f"STEADFAUST_TRACE_URL is {self.trace_url!r}: give an address of https:// or http://"
                f" with {PLACE} in it"
            )
        if self.traces != "none":
            from streams.tracing.export import exporter_of  # nothing else needs the exporters

            exporter_of(self.traces).shutdown()

    @asynccontextmanager
    async def tracing(self, group: str) -> AsyncIterator[Tracer | None]:
        """Context manager with a tracer, or None if traces are off. Raises SettingsError."""
        if self.traces == "none":
            yield None
            return
        from streams.tracing.export import SpanExport, exporter_of  # as above

        async with SpanExport(exporter_of(self.traces), group=group) as export:
            yield Tracer(export.report, ratio=self.trace_ratio, limit=self.trace_limit)
