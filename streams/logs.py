"""How logs look: one line an event, on standard error, JSON unless on a terminal. A line that is written
while a message is handled has the ids of that message.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

import structlog


class Identified(Protocol):
    """The message that is handled. Its ids are read when a line is written, not for each message."""

    def log_ids(self) -> Mapping[str, str]:
        """Its ids by their names in the log."""


#: What the running task handles; None: nothing.
HANDLED: ContextVar[Identified | None] = ContextVar("handled", default=None)
#: Say what the running task handles from now on.
handling = HANDLED.set


def add_ids(logger: Any, method: str, line: Any) -> Any:
    """A processor of structlog: what a line does not say of the message that is handled is added."""
    del logger, method
    handled = HANDLED.get()
    if handled is not None:
        for name, value in handled.log_ids().items():
            line.setdefault(name, value)
    return line


def configure_logs(level: int | str = logging.INFO) -> None:
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
            add_ids,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *tail,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # One write for each line: Faust's threads write to the same stream.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
