"""How logs look: one line an event, on standard error, JSON unless on a terminal. A line that is written
while a message is handled has the ids of that message.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TextIO, cast

import structlog

from streams.errors import ends_process
from streams.logs.detached import QuietStream, detach


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


def configure_logs(level: int | str = logging.INFO, *, detached: bool = False) -> None:
    """Set structlog up for this process; records below `level` are dropped. No call of a logger raises.

    With `detached`, none of them waits either, and so it is with all else that is printed: for processes that
    must go on when nobody reads what they say (`streams.logs.detached`).
    """
    watched = sys.stderr is not None and sys.stderr.isatty()
    if detached:
        detach(_tell_dropped)
    tail: list[structlog.types.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if watched
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
    steps: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *tail,
    ]
    structlog.configure(
        processors=[_Rendering(steps)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # One write for each line: Faust's threads write to the same stream.
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", QuietStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )


class _Rendering:
    """All that makes a line of an event, so that no value in it can fail the caller."""

    def __init__(self, steps: Sequence[structlog.types.Processor]) -> None:
        self._steps = steps

    def __call__(self, logger: Any, method: str, event: Any) -> Any:
        name, line = event.get("event"), event
        try:
            for step in self._steps:
                line = step(logger, method, line)
        except BaseException as error:
            if isinstance(error, structlog.DropEvent) or ends_process(error):
                raise
            return json.dumps({"event": str(name), "level": method, "log_error": type(error).__name__})
        return line


def _tell_dropped(stream: str, lines: int, why: str) -> None:
    structlog.get_logger(__name__).warning("log_lines_dropped", stream=stream, lines=lines, cause=why)
