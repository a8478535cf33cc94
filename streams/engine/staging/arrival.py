"""Messages and operations on their way through a lane, and the lane's counters."""

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
    """Counters of a lane for as long as its worker has it. Opening the lane again keeps them."""

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
    """The current or next attempt of a handler at a message, and the number of earlier ones."""

    __slots__ = ("permit", "span", "tries", "upload")

    def __init__(self) -> None:
        #: The breaker's permit, if the gate was checked.
        self.permit = NO_PERMIT
        #: How often the handler has tried the message before.
        self.tries = 0
        #: Bytes of a payload that it must write; 0: none is known.
        self.upload = 0
        #: Its span while it runs, if the message's trace is recorded.
        self.span: Span | None = None


class Arrival:
    """A message with the handlers that must see it, one after the other. It is `Fresh`, or the `Head` of a
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
        #: None until its payload is fetched, and for a message that no handler may see.
        self.message = message
        #: When a lane took it from its topic; for a waiting message, when it began to wait. Epoch seconds.
        self.since = since
        #: Each handler with its inbox key, if the inbox covers the topic. `at` is the index of the next one.
        self.handlers: tuple[tuple[BoundHandler, bytes | None], ...] = route.handlers_without_inbox
        self.at = 0
        self.attempt = Attempt()
        #: Why no handler may see it, for now or for good.
        self.error: PermanentError | UnknownSchema | None = None
        #: Its trace, if that is recorded.
        self.trace: MessageTrace | None = None
        self._row_key = b""

    @property
    def handler(self) -> BoundHandler:
        """The handler that sees the message now."""
        return self.handlers[self.at][0]

    @property
    def place(self) -> tuple[str, int, int]:
        """The topic, partition and offset of its record."""
        return self.record.topic, self.record.partition, self.record.offset

    @property
    def inbox_key(self) -> bytes | None:
        """The current handler's inbox key; None if the inbox does not cover the message or already has it."""
        return self.handlers[self.at][1]

    def row_key(self) -> bytes:
        """The prefix of the changelog keys of its key's rows. Cached, because each row needs it."""
        if not self._row_key:
            self._row_key = row_key(self.key)
        return self._row_key

    def next_handler(self) -> None:
        """Move on to the next handler, if there is one."""
        self.at += 1
        if self.at < len(self.handlers):
            self.attempt = Attempt()

    @property
    def deadline(self) -> float | None:
        """When the message expires, in epoch seconds; None: never."""
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
    """A message that was just read, that its lane sent to itself, or that starts over after an operation."""

    __slots__ = ()


class Head(Arrival):
    """The first message of a queue, when its turn has come.

    Attributes:
        queue: the local key of its queue.
        number: its number there.
        is_replay: whether the message is a dead letter, and an operator requested this run.
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
        super().__init__(entry, route, record, route.envelope(record), None, since)
        self.handlers = ((handler, None),)
        self.queue = queue
        self.number = number
        self.is_replay = is_replay
        self.attempt.tries = tries


class PendingOperation(NamedTuple):
    """An operation that waits for its key's turn.

    Attributes:
        entry, key: its entry in the commit order, and the key that it waits for.
        id_bytes, inbox_key: the id of its message, and the inbox key of that id.
        carry_out: carries it out at a time in epoch seconds. Returns a message that starts over, if any.
    """

    entry: Entry
    key: bytes
    operation: Command
    id_bytes: bytes
    inbox_key: bytes
    carry_out: Callable[[PendingOperation, float], Fresh | None]


#: Messages and operations that wait for a key in flight, in order.
Later = deque[Arrival | PendingOperation]
