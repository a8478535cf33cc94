"""The public names for services. Sagas are in `streams.saga`, topics of others in `streams.sources`, tools
for tests in `streams.testing`, and outbox, inbox and queues in PostgreSQL in `streams.postgres`, which needs
an extra.

Modules of the library do not import from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streams.errors import PermanentError, RowsUnavailable, SteadfaustError, TransientError
from streams.model.choreography import choreography, on
from streams.model.codecs import json_without_schema
from streams.model.envelope import Envelope
from streams.model.handlers import Service
from streams.model.message import Message, Personal, Row
from streams.model.outcome import Outcome, Timer, nothing, outcome
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RetryPolicy
from streams.model.table import Rows, Table
from streams.ports import Clock
from streams.settings import Settings

if TYPE_CHECKING:
    from streams.worker.worker import Worker
else:

    def __getattr__(name: str) -> Any:
        """Import Worker at its first use: handlers and their tests need neither Faust nor aiokafka."""
        if name == "Worker":
            from streams.worker.worker import Worker

            return Worker
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BreakerPolicy",
    "Clock",
    "Envelope",
    "Message",
    "Outcome",
    "PermanentError",
    "Personal",
    "RetryPolicy",
    "Row",
    "Rows",
    "RowsUnavailable",
    "Service",
    "Settings",
    "SteadfaustError",
    "Table",
    "Timer",
    "TransientError",
    "Worker",
    "choreography",
    "json_without_schema",
    "nothing",
    "on",
    "outcome",
]
