"""Messages and rows are frozen msgspec structs; a message also knows its topic and its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec

#: The namespace in Avro of a class that says no other.
NAMESPACE = "steadfaust"


#: The name of the mark that a field has in its type's `extra`.
PERSONAL = "personal"
#: Marks a field that identifies a person: `customer: Annotated[str, Personal]`. The web view masks it for
#: viewers.
Personal = msgspec.Meta(extra={PERSONAL: True})


class LogLine(NamedTuple):
    """A line of the log.

    Attributes:
        level: `debug`, `info`, `warning` or `error`.
        event: its name.
        fields: what else it says.
    """

    level: str
    event: str
    fields: Mapping[str, Any]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A typed record, one class for each topic: an event (past tense) or a command (imperative). A class has
    fields, a `TOPIC` and a `key`.
    """

    #: The topic that carries it, and its CloudEvents type: `<domain>.<entity>.<event>.v<N>`.
    TOPIC: ClassVar[str]

    #: The namespace of its Avro schema, which is derived from the class (`streams.model.avro_types`).
    NAMESPACE: ClassVar[str] = NAMESPACE

    #: A picture, a document: its payload goes to the object store whatever its size.
    BINARY: ClassVar[bool] = False

    #: Which of its fields says, in epoch seconds, until when it is of use (`ce_expirytime`); 0 there: always.
    EXPIRES: ClassVar[str] = ""

    #: Which of its fields says for how many seconds it is of use, from when the lane that handles it takes it
    #: (`ce_within`); 0 there: always. What it waits in its topic before that does not count.
    WITHIN: ClassVar[str] = ""

    #: Whether handlers send it only under the key that they were called with: then their lane need not read
    #: it back (docs/adr/0046-loopback.md). To send it under another key is a WiringError.
    SAME_KEY: ClassVar[bool] = False

    #: Whether each one that is sent is a line in the log, too: see `log_line`.
    LOGGED: ClassVar[bool] = False

    def log_line(self) -> LogLine:
        """Fields for the log. Of a class that is LOGGED."""
        raise NotImplementedError(f"{type(self).__name__} is LOGGED, and has no log_line")

    @property
    def key(self) -> str:
        """The key: it decides the partition, the lane, and the rows that handlers may touch."""
        raise NotImplementedError(f"{type(self).__name__} has no key")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a table's row: a class with fields. It is written whole, and replaced, never changed."""

    #: As a message's.
    NAMESPACE: ClassVar[str] = NAMESPACE
