"""Messages and rows: frozen msgspec structs. A message also has a topic and a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec

#: Avro namespace of classes that do not set their own.
NAMESPACE = "steadfaust"


#: Name of the mark in the `extra` of a field's type.
PERSONAL = "personal"
#: Marks a field that identifies a person: `customer: Annotated[str, Personal]`. Pages mask it for users with
#: read-only access.
Personal = msgspec.Meta(extra={PERSONAL: True})


class LogLine(NamedTuple):
    """A line of the log.

    Attributes:
        level: `debug`, `info`, `warning` or `error`.
        event: name of the event.
        fields: further fields by name.
    """

    level: str
    event: str
    fields: Mapping[str, Any]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of messages: events (named in the past tense) and commands (imperative). A subclass has
    fields, a `TOPIC` and a `key`, and each topic has one class.
    """

    #: Topic of the message, and its CloudEvents type: `<domain>.<entity>.<event>.v<N>`.
    TOPIC: ClassVar[str]

    #: Namespace of the Avro schema that is derived from the class (`streams.model.avro_types`).
    NAMESPACE: ClassVar[str] = NAMESPACE

    #: Whether its payload always goes to the object store, whatever its size, as for a picture or a document.
    BINARY: ClassVar[bool] = False

    #: Name of the field with its deadline in epoch seconds (`ce_expirytime`); a value of 0 is no deadline.
    EXPIRES: ClassVar[str] = ""

    #: Name of the field with its time limit in seconds (`ce_within`), counted from its admission. Time in
    #: its topic does not count; a value of 0 is no limit.
    WITHIN: ClassVar[str] = ""

    #: Whether handlers send it only under the key that they were called with, so that the lane can handle it
    #: without reading it back (docs/adr/0046-loopback.md). Sending it under another key raises WiringError.
    SAME_KEY: ClassVar[bool] = False

    #: Whether every sent message is also logged, see `log_line`.
    LOGGED: ClassVar[bool] = False

    def log_line(self) -> LogLine:
        """The log line of the message. A class with LOGGED must override it."""
        raise NotImplementedError(f"{type(self).__name__} is LOGGED, but has no log_line")

    @property
    def key(self) -> str:
        """The key, which decides the partition, the lane, and the rows that handlers can read and change."""
        raise NotImplementedError(f"{type(self).__name__} has no key")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of rows. A row is immutable: handlers replace it as a whole."""

    #: Namespace of its Avro schema.
    NAMESPACE: ClassVar[str] = NAMESPACE
