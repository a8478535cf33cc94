"""A message on its way through a lane, an attempt of a handler at it, and what the lane counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from streams.errors import PermanentError, UnknownSchema
from streams.model.application import BoundHandler, BoundRoute
from streams.model.envelope import Envelope
from streams.model.operations import Command
from streams.policy.breaker import Permit
from streams.ports import Record
from streams.staging.entry import Entry
from streams.tracing.attempts import MessageTrace
from streams.tracing.span import Span


@dataclass(slots=True)
class Counters:
    """Counts of a lane since its worker has it; opening it again keeps them."""

    handled: int = 0
    looped: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    misrouted: int = 0
    timers: int = 0
    retries: int = 0
    waiting: int = 0
    operations: int = 0
    replayed: int = 0
    expired_letters: int = 0
    references_removed: int = 0
    held_loop: int = 0


class PendingOperation(NamedTuple):
    """An operation before its key's turn.

    Attributes:
        carry_out: does what it requests, with its arrival and the time, in epoch seconds.
        id_bytes, inbox_key: the id of its message, and the key of that in the inbox.
    """

    operation: Command
    id_bytes: bytes
    inbox_key: bytes
    carry_out: Callable[[Arrival, float], None]


class Arrival:
    """A message with the handlers that are still to see it."""

    __slots__ = (
        "attempts",
        "entry",
        "envelope",
        "error",
        "handlers",
        "is_replay",
        "message",
        "number",
        "operation",
        "permit",
        "queue",
        "record",
        "route",
        "since",
        "span",
        "trace",
    )

    def __init__(
        self,
        entry: Entry,
        route: BoundRoute,
        record: Record,
        envelope: Envelope,
        message: Any,
        since: float = 0.0,
    ) -> None:
        self.entry = entry
        self.route = route
        self.record = record
        self.envelope = envelope
        #: None while its payload has not been fetched, and of what no handler may see.
        self.message = message
        #: When a lane has taken it from its topic; of one that waits, when that began. Epoch seconds.
        self.since = since
        #: The queue that it is the head of, by its local key, and its number there; empty: it has just
        #: come in.
        self.queue = b""
        self.number = 0
        #: Whether an operator has requested the run: the message is a dead letter.
        self.is_replay = False
        #: What an operator asks for instead of a message: carried out when it is its key's turn.
        self.operation: PendingOperation | None = None
        #: Of the head of a queue: what its handler may run with, and how often it has tried it before.
        self.permit: Permit | None = None
        self.attempts = 0
        #: Why no handler may see it: now, or ever.
        self.error: PermanentError | UnknownSchema | None = None
        #: The trace that it belongs to, if that is recorded, and the span of the attempt that is under way.
        self.trace: MessageTrace | None = None
        self.span: Span | None = None
        #: With each handler its inbox key, when the topic is covered by the inbox.
        self.handlers: Sequence[tuple[BoundHandler, bytes | None]] = route.handlers_without_inbox

    @property
    def deadline(self) -> float | None:
        """When it is of no use any more, epoch seconds; None: never."""
        until, within = self.envelope.deadline, self.envelope.within
        return until if until is not None or within is None else self.since + within

    def log_ids(self) -> dict[str, str]:
        """The ids that name the message in the log; see `streams.logs`."""
        key = (self.record.key or b"").decode("utf-8", "replace")
        ids = {
            "message_id": self.envelope.id,
            "correlation_id": self.envelope.correlation_id,
            "key": key,
        }
        if self.span is not None:
            ids |= self.span.log_ids()
        saga = getattr(self.message, "saga_id", None)
        return {**ids, "saga_id": str(saga)} if saga else ids

    @property
    def lacks_payload(self) -> bool:
        """Whether a handler is to see it once its payload has been fetched."""
        return self.message is None and self.error is None and bool(self.handlers)


class Attempt:
    """A handler at a message that does not run straight through: it waits, is tried again, or has failed.

    Attributes:
        permit: what it runs with.
        attempts: how often the handler has tried the message.
    """

    __slots__ = ("arrival", "attempts", "handler", "inbox_key", "permit")

    def __init__(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        permit: Permit,
        attempts: int,
    ) -> None:
        """`inbox_key` is None where the inbox does not cover the message, or has it already."""
        self.arrival = arrival
        self.handler = handler
        self.inbox_key = inbox_key
        self.permit = permit
        self.attempts = attempts
