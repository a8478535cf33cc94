"""How logs look: one line an event, on standard error, JSON when nobody watches."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs(level: int = logging.INFO) -> None:
    """Set structlog up for this process; records below `level` are dropped."""
    watched = sys.stderr.isatty()
    tail: list[structlog.types.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if watched
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *tail,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # One write for each line: Faust's threads write to the same stream.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
