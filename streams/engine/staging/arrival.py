"""A message or an operation on its way through a lane, and the lane's counters."""

from __future__ import annotations

from collections import deque
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


class Attempt:
    """The attempts of a handler at a message: the one that is made now or comes next, and their count."""

    __slots__ = ("permit", "span", "tries", "upload")

    def __init__(self) -> None:
        #: The breaker's, where its gate was asked.
        self.permit = NO_PERMIT
        #: How often the handler has tried the message before.
        self.tries = 0
        #: Bytes of a payload that it is to write; 0: none that is known of.
        self.upload = 0
        #: While it is made, if its trace is recorded.
        self.span: Span | None = None


class Arrival:
    """A message with the handlers that are to see it, one after the other. It is `Fresh`, or the `Head` of a
    queue.
    """

    __slots__ = (
        "_row_key",
        "at",
        "attempt",
        "entry",
        "envelope",
        "error",
        "handlers",
        "key",
        "message",
        "record",
        "route",
        "since",
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
        self.key = record.key or b""
        self.envelope = envelope
        #: None while its payload has not been fetched, and of what no handler may see.
        self.message = message
        #: When a lane has taken it from its topic; of one that waits, when that began. Epoch seconds.
        self.since = since
        #: With each handler its inbox key, when the topic is covered by the inbox; and which of them is next.
        self.handlers: tuple[tuple[BoundHandler, bytes | None], ...] = route.handlers_without_inbox
        self.at = 0
        self.attempt = Attempt()
        #: Why no handler may see it: now, or ever.
        self.error: PermanentError | UnknownSchema | None = None
        #: The trace that it belongs to, if that is recorded.
        self.trace: MessageTrace | None = None
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
        if self.at < len(self.handlers):
            self.attempt = Attempt()

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
        span = self.attempt.span
        if span is not None:
            ids |= span.log_ids()
        try:
            saga = getattr(self.message, "saga_id", None)
            return {**ids, "saga_id": str(saga)} if saga else ids
        except BaseException as error:
            if ends_process(error):
                raise
            return {**ids, "saga_id": f"({type(error).__name__})"}  # a property of the message's class


class Fresh(Arrival):
    """A message that was just read, that an operator has taken anew, or that its lane sends to itself."""

    __slots__ = ()


class Head(Arrival):
    """The first message of a queue, which has its turn.

    Attributes:
        queue: its queue, by its local key.
        number: its number there.
        is_replay: an operator has requested the run: the message is a dead letter.
    """

    __slots__ = ("is_replay", "number", "queue")

    def __init__(
        self,
        entry: Entry,
        route: BoundRoute,
        record: Record,
        since: float,
        handler: BoundHandler,
        queue: bytes,
        number: int,
        *,
        tries: int,
        is_replay: bool,
    ) -> None:
        super().__init__(entry, route, record, Envelope(record), None, since)
        self.handlers = ((handler, None),)
        self.queue = queue
        self.number = number
        self.is_replay = is_replay
        self.attempt.tries = tries


class PendingOperation(NamedTuple):
    """What an operator asks for, until it is its key's turn.

    Attributes:
        entry, key: its place in the order of commits, and whose turn it waits for.
        id_bytes, inbox_key: the id of its message, and the key of that in the inbox.
        carry_out: does what it requests, at a time in epoch seconds. Returns a message to be taken anew.
    """

    entry: Entry
    key: bytes
    operation: Command
    id_bytes: bytes
    inbox_key: bytes
    carry_out: Callable[[PendingOperation, float], Fresh | None]


#: What waits for a key that is under way, in its order.
Later = deque[Arrival | PendingOperation]
