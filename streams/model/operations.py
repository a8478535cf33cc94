"""Operations on dead letters, handlers, rows and keys, as messages, and the entries of their log."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

#: Epoch milliseconds from outside: up to the year 9999, which has a form to be shown in.
EpochMs = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]


class LetterCommand(StrEnum):
    """Operations on a letter."""

    REPLAY = "replay"
    DISCARD = "discard"
    RESTORE = "restore"
    EDIT = "edit"  # and replay


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator's command, the value of a message. Its id is the message's.

    Attributes:
        kind: what is to be done.
        letter: about which letter.
        who, why, at_ms: by whom, for what reason, when (epoch milliseconds).
        force: also when the letter is parked.
        job: of which larger selection it is a part.
        value, headers: what an edited message is to have; None leaves them as they are.
        fingerprint: of the schema that an edited value was written with; None: as it was.
    """

    kind: LetterCommand
    letter: str
    who: str
    why: str
    at_ms: EpochMs
    force: bool = False
    job: str = ""
    value: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None
    fingerprint: bytes | None = None


#: What the type of such a message is, which tells it apart from an operation on a dead letter.
HANDLER_OPERATION = "steadfaust.handler.operation"


class HandlerCommand(StrEnum):
    """Operations on a handler."""

    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"  # work off what waits already, then pause


class PauseState(StrEnum):
    """The state of a handler in a partition where it does not run."""

    PAUSED = "paused"  # nothing is tried
    DRAINING = "draining"  # what waited or was under way before is worked off; new messages wait
    DRAINED = "drained"  # all of that is done; as paused


class HandlerOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's command about a handler, the value of a message. Its id is the message's.

    Attributes:
        kind: what is to be done.
        handler: by its name.
        who, why, at_ms: by whom, for what reason, when (epoch milliseconds).
    """

    kind: HandlerCommand
    handler: str
    who: str
    why: str
    at_ms: EpochMs


#: The type of a message that is about a row.
ROW_OPERATION = "steadfaust.row.operation"


class RowCommand(StrEnum):
    """Operations on a row that cannot be read."""

    REPLACE = "replace"
    DELETE = "delete"


class RowOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator's command about a row, the value of a message under the row's key. Its id is the message's.

    Attributes:
        kind: what is to be done.
        table, key, subkey: about which row.
        value: what it is to be, as rows are stored; None where it is deleted.
        who, why, at_ms: by whom, for what reason, when (epoch milliseconds).
    """

    kind: RowCommand
    table: str
    key: bytes
    subkey: bytes = b""
    value: bytes | None = None
    who: str
    why: str
    at_ms: EpochMs


#: The type of a message that is about all that a lane has of a key.
KEY_OPERATION = "steadfaust.key.operation"


class KeyCommand(StrEnum):
    """Operations on a key."""

    FIND = "find"  # count what there is
    ERASE = "erase"


class KeyOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's command about a key, the value of a message under it. Its id is the message's.

    Attributes:
        kind: what is to be done.
        who, why, at_ms: by whom, for what reason, when (epoch milliseconds).
    """

    kind: KeyCommand
    key: bytes
    who: str
    why: str
    at_ms: EpochMs


class HandlerPause(msgspec.Struct, array_like=True, frozen=True):
    """The row of a handler that does not just run in a partition; one that does has none.

    Attributes:
        state: what it does.
        who, why: by whom and for what reason.
        since_ms: since when, epoch milliseconds.
    """

    state: PauseState
    who: str
    why: str
    since_ms: int

    @property
    def holds(self) -> bool:
        """Whether nothing of the handler is tried."""
        return self.state is not PauseState.DRAINING


# -- on the wire ------------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Operation).decode
_decode_handler = msgspec.json.Decoder(HandlerOperation).decode
_decode_row = msgspec.json.Decoder(RowOperation).decode
_decode_key = msgspec.json.Decoder(KeyOperation).decode


#: Any of them.
Command = Operation | HandlerOperation | RowOperation | KeyOperation


def encode_operation(operation: Command) -> bytes:
    """The value of an operation's message."""
    return _encode(operation)


def decode_operation(data: bytes) -> Operation:
    """The operation that a message's value says. Raises msgspec.DecodeError."""
    return _decode(data)


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The log's entry of an operation on a letter, and of the end of a replay: who, when, why, result."""

    operation: str
    id: str
    letter: str
    who: str
    why: str
    asked_at: str
    at: str
    result: str
    state: str
    topic: str
    partition: int
    offset: int
    key: str
    handler: str
    message_id: str
    job: str = ""


def decode_handler_operation(data: bytes) -> HandlerOperation:
    """The operation that a message's value says. Raises msgspec.DecodeError."""
    return _decode_handler(data)


class HandlerDone(msgspec.Struct, frozen=True, kw_only=True):
    """The log's entry of an operation on a handler, and of the end of a drain: in which partition,
    who, when, why, result. `state` is what the handler does from then on.
    """

    operation: str
    id: str
    handler: str
    partition: int
    who: str
    why: str
    asked_at: str
    at: str
    result: str
    state: str


def decode_row_operation(data: bytes) -> RowOperation:
    """The operation that a message's value says. Raises msgspec.DecodeError."""
    return _decode_row(data)


class RowDone(msgspec.Struct, frozen=True, kw_only=True):
    """The log's entry of an operation on a row: which, who, when, why, result."""

    operation: str
    id: str
    table: str
    key: str
    subkey: str
    partition: int
    who: str
    why: str
    asked_at: str
    at: str
    result: str


def decode_key_operation(data: bytes) -> KeyOperation:
    """The operation that a message's value says. Raises msgspec.DecodeError."""
    return _decode_key(data)


class KeyDone(msgspec.Struct, frozen=True, kw_only=True):
    """The log's entry of an operation on a key, in one partition: who, when, why, result.

    Attributes:
        found: how many there were: rows by table, `timers`, `waiting` messages, `dead_letters`.
        objects: names of objects that these referred to, the first so many.
        more: whether there is more of the key than one operation erases; a further one goes on.
    """

    operation: str
    id: str
    partition: int
    who: str
    why: str
    asked_at: str
    at: str
    result: str
    found: dict[str, int]
    objects: list[str]
    more: bool = False


def encode_done(done: Done | HandlerDone | RowDone | KeyDone) -> bytes:
    """The value of a record in the log of operations."""
    return _encode(done)
