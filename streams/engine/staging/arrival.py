"""A message on its way through a lane, and the lane's counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from streams.engine.staging.entry import Entry
from streams.errors import PermanentError, UnknownSchema, ends_process
from streams.model.bound import BoundHandler, BoundRoute
from streams.model.envelope import Envelope
from streams.model.operations import Command
from streams.model.policy.breaker import NO_PERMIT
from streams.model.row_keys import row_key
from streams.ports import Record
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
    """A message with the handlers that are to see it, one after the other."""

    __slots__ = (
        "_row_key",
        "at",
        "attempts",
        "entry",
        "envelope",
        "error",
        "handlers",
        "is_replay",
        "key",
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
        "upload",
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
        self.key = record.key or b""
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
        #: The attempt under way: which of `handlers` makes it, the breaker's permit for it, how often this
        #: handler has tried the message before, and the bytes of a payload that it is to write.
        self.at = 0
        self.permit = NO_PERMIT
        self.attempts = 0
        self.upload = 0
        #: Why no handler may see it: now, or ever.
        self.error: PermanentError | UnknownSchema | None = None
        #: The trace that it belongs to, if that is recorded, and the span of the attempt that is under way.
        self.trace: MessageTrace | None = None
        self.span: Span | None = None
        #: With each handler its inbox key, when the topic is covered by the inbox.
        self.handlers: tuple[tuple[BoundHandler, bytes | None], ...] = route.handlers_without_inbox
        self._row_key = b""

    @property
    def handler(self) -> BoundHandler:
        """The handler that sees the message now."""
        return self.handlers[self.at][0]

    @property
    def place(self) -> tuple[str, int, int]:
        """Where its record is: topic, partition, offset."""
        return self.record.topic, self.record.partition, self.record.offset

    @property
    def inbox_key(self) -> bytes | None:
        """Its key in the inbox; None where the inbox does not cover the message, or has it already."""
        return self.handlers[self.at][1]

    def row_key(self) -> bytes:
        """What the changelog keys of its key's rows begin with: each row of a handler needs it."""
        if not self._row_key:
            self._row_key = row_key(self.key)
        return self._row_key

    def next_handler(self) -> None:
        """The handler has decided: the next one sees the message, if there is one."""
        self.at += 1
        self.permit, self.attempts, self.upload = NO_PERMIT, 0, 0

    @property
    def deadline(self) -> float | None:
        """When it is of no use any more, epoch seconds; None: never."""
        until, within = self.envelope.deadline, self.envelope.within
        return until if until is not None or within is None else self.since + within

    def log_ids(self) -> dict[str, str]:
        """The ids that name the message in the log; see `streams.logs`."""
        key = self.key.decode("utf-8", "replace")
        ids = {
            "message_id": self.envelope.id,
            "correlation_id": self.envelope.correlation_id,
            "key": key,
        }
        if self.span is not None:
            ids |= self.span.log_ids()
        try:
            saga = getattr(self.message, "saga_id", None)
            return {**ids, "saga_id": str(saga)} if saga else ids
        except BaseException as error:
            if ends_process(error):
                raise
            return {**ids, "saga_id": f"({type(error).__name__})"}  # a property of the message's class
