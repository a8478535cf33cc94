"""An application at work: names, codecs and constant headers of its topics, handlers and tables, made once
at wiring. Compiled with the hot path, which reads them for each message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streams.errors import WiringError
from streams.model.codecs import Codec
from streams.model.envelope import Envelope
from streams.model.message import Message
from streams.model.outcome import Outcome
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RetryPolicy
from streams.model.sources import Source
from streams.ports import TP, Record


@dataclass(frozen=True, slots=True)
class BoundTable:
    """A table with its codec and changelog topic."""

    name: str
    codec: Codec[Any]
    changelog: str
    #: What a stored row begins with.
    row_prefix: bytes


@dataclass(frozen=True, slots=True)
class BoundMessage:
    """A message that a service sends: its codec and the headers that never change. `binary` says that its
    payload goes to the object store whatever its size, `expires` and `within` which fields have its deadline,
    `logged` that each is a line in the log, `same_key` that it is sent under the key of its cause alone.
    """

    topic: str
    codec: Codec[Any]
    headers: tuple[tuple[str, bytes], ...]
    #: The same as bytes.
    packed: bytes
    #: Where it goes, by partition number.
    partitions: tuple[TP, ...]
    binary: bool
    expires: str
    within: str
    logged: bool
    same_key: bool


@dataclass(frozen=True, slots=True)
class BoundHandler:
    """A handler with its resources filled in, its rows resolved and its outputs ready."""

    name: str
    name_bytes: bytes
    call: Callable[..., Any]
    is_async: bool
    wants_envelope: bool
    #: With each parameter its table, how its message names the sub-row, and whether it may ask for any.
    rows: tuple[tuple[str, BoundTable, Callable[[Any], str] | None, bool], ...]
    sends: dict[type[Message], BoundMessage]
    retry: RetryPolicy
    breaker: BreakerPolicy
    order_by: Callable[[Any], str] | None
    on_give_up: Callable[[Any, Exception], Outcome] | None
    accepts_expired: bool

    def table_of(self, parameter: str) -> tuple[BoundTable, Callable[[Any], str] | None, bool]:
        """The table behind a row parameter, its subkey, and whether it may be any. Raises WiringError for a
        name that was not declared.
        """
        for name, table, subkey, any_row in self.rows:
            if name == parameter:
                return table, subkey, any_row
        declared = [name for name, *_ in self.rows]
        raise WiringError(f"{self.name} returned a row named {parameter!r}, but is declared with {declared}")


@dataclass(frozen=True, slots=True)
class BoundRoute:
    """A topic with what happens to its messages. `outside` says that clients write it, not our handlers;
    `loops` that a lane may handle what it sends there in the transaction that writes it; `source` that others
    write it in their own form.
    """

    topic: str
    codec: Codec[Any]
    handlers: tuple[BoundHandler, ...]
    handlers_without_inbox: tuple[tuple[BoundHandler, None], ...]
    inbox: bool
    outside: bool
    is_async: bool
    loops: bool
    dead_letters: str
    retries: tuple[str, ...]
    source: Source | None

    def envelope(self, record: Record) -> Envelope:
        """The envelope of a record of this topic. Raises MissingHeader without an id, Unreadable when it is
        none, and HeaderTooLong.
        """
        envelope = Envelope(record if self.source is None else self.source.bare(record))
        envelope.require_bounded()
        return envelope
