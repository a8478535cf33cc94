"""What operators do about dead letters: a policy without I/O. An operation is a message to the letter's lane,
so it happens once, in order with everything else about the letter's key (mission, mistake 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec.structs import replace

from streams.claim_check import without_claim
from streams.envelope import CAUSATION, CORRELATION, FINGERPRINT, ID, derived_id
from streams.letter_rows import Event, Letter, State, capped, remember

#: Epoch milliseconds that someone outside has said: up to the year 9999, which has a form to be shown in.
EpochMs = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]


class Kind(StrEnum):
    """What can be done about a letter."""

    REPLAY = "replay"
    DISCARD = "discard"
    RESTORE = "restore"
    EDIT = "edit"  # and replay


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator's wish, the value of a message. Its id is the message's.

    Attributes:
        kind: what is to be done.
        letter: about which letter.
        who, why, at_ms: by whom, for what reason, when (epoch milliseconds).
        force: also when the letter is parked.
        job: of which larger selection it is a part.
        value, headers: what an edited message is to have; None leaves them as they are.
        fingerprint: of the schema that an edited value was written with; None: as it was.
    """

    kind: Kind
    letter: str
    who: str
    why: str
    at_ms: EpochMs
    force: bool = False
    job: str = ""
    value: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None
    fingerprint: bytes | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What is allowed: replays in vain until a letter is parked, and whether messages may be edited."""

    max_replays: int = 3
    edit: bool = False


class Do(StrEnum):
    """What follows from an operation beside the row's change."""

    NOTHING = "nothing"
    REPLAY = "replay"  # the handler is to see the message again
    RELEASE = "release"  # what waits behind the letter goes on, and itself waits no more


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a letter: its row, None when there is none; what follows; the result in words."""

    letter: Letter | None
    do: Do
    result: str


def decide(
    letter: Letter | None,
    operation: Operation,
    *,
    id_bytes: bytes,
    now_ms: int,
    limits: Limits,
    gone: bool = False,
) -> Verdict:
    """What an operation does. One that cannot be is recorded and changes nothing else, so it does not matter
    how often and in which order operations come. `id_bytes` is the operation's id; `gone` says that the
    letter's handler is not there any more, or takes its topic no more, so that a replay would wait for ever.
    """
    if letter is None:
        return Verdict(None, Do.NOTHING, "refused: there is no such letter, or no more")
    if why := _why_not(letter, operation, limits, gone=gone):
        return refused(letter, operation, now_ms, why)
    match operation.kind:
        case Kind.DISCARD:
            after, do, result = replace(letter, state=State.DISCARDED, queue=b""), Do.NOTHING, "discarded"
            do = Do.RELEASE if letter.queue or letter.state is State.REPLAYING else Do.NOTHING
        case Kind.RESTORE:
            parked = letter.replays >= limits.max_replays
            after = replace(letter, state=State.PARKED if parked else State.DEAD)
            do, result = Do.NOTHING, "restored"
        case Kind.REPLAY:
            after, do, result = replace(letter, state=State.REPLAYING), Do.REPLAY, "replaying"
        case Kind.EDIT:
            after, do = replace(edited(letter, operation, id_bytes), state=State.REPLAYING), Do.REPLAY
            result = f"edited and replaying as {_id_of(after)}, it was {_id_of(letter)}"
    return Verdict(_told(after, operation, now_ms, result), do, result)


def refused(letter: Letter, operation: Operation, now_ms: int, why: str) -> Verdict:
    """The letter stays as it is, and its history tells of the attempt."""
    result = f"refused: {why}"
    return Verdict(_told(letter, operation, now_ms, result), Do.NOTHING, result)


def _why_not(letter: Letter, operation: Operation, limits: Limits, *, gone: bool) -> str:
    if letter.state is State.REPLAYING and not gone:
        return "it is being replayed"
    if letter.state is State.REPLAYING and operation.kind is not Kind.DISCARD:
        return f"its replay waits for {letter.handler}, which takes {letter.topic} no more: discard it first"
    match operation.kind:
        case Kind.DISCARD:
            if not operation.why:
                return "a discard needs a reason"
            return "it was discarded before" if letter.state is State.DISCARDED else ""
        case Kind.RESTORE:
            return "" if letter.state is State.DISCARDED else "it is not discarded"
        case Kind.EDIT if not limits.edit:
            return "editing is off: see the setting edit_dead_letters"
        case Kind.EDIT if operation.value is None and operation.headers is None:
            return "it says neither a new value nor new headers"
        case Kind.EDIT if letter.omitted and (operation.value is None or operation.headers is None):
            return "value and headers are not kept: give both"
        case Kind.EDIT if letter.is_raw and (operation.value is None or operation.headers is None):
            return "it is no message, but the bytes of something unreadable: give value and headers"
        case Kind.REPLAY if letter.is_raw:
            return "it is no message, but the bytes of something unreadable: edit it, or discard it"
        case Kind.REPLAY if letter.omitted:
            return f"its bytes are not kept, they are in {letter.topic} at offset {letter.offset}"
    if letter.state is State.DISCARDED:
        return "it was discarded: restore it first"
    if letter.state is State.PARKED and not operation.force:
        return f"it is parked after {letter.replays} replays in vain: force it"
    return ""


def edited(letter: Letter, operation: Operation, id_bytes: bytes) -> Letter:
    """The letter with another message in it: a new one, caused by the old one (mission, mistake 9)."""
    given = operation.headers
    headers: Sequence[tuple[str, bytes | None]] = letter.headers if given is None else given
    known = dict(letter.headers)
    old = known.get(ID) or b""
    own = [
        (ID, derived_id(id_bytes, b"edit", 0)),
        (CORRELATION, known.get(CORRELATION) or old),
        (CAUSATION, old),
    ]
    if operation.fingerprint is not None:
        own.append((FINGERPRINT, operation.fingerprint))
    names = {name for name, _ in own}
    value = letter.value if operation.value is None else operation.value
    if value:  # else the payload is elsewhere, and stays there
        headers = without_claim(headers)
    return replace(
        letter,
        value=value,
        headers=[header for header in headers if header[0] not in names] + own,
        omitted=0,
        edited=True,
    )


def _id_of(letter: Letter) -> str:
    return capped((dict(letter.headers).get(ID) or b"?").decode("utf-8", "replace"), 64)


def _told(letter: Letter, operation: Operation, now_ms: int, result: str) -> Letter:
    event = Event(now_ms, operation.who, str(operation.kind), operation.why, result)
    return replace(letter, history=remember(letter.history, event))


# -- on the wire ------------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Operation).decode


def encode_operation(operation: Operation) -> bytes:
    """An operation as the value of its message."""
    return _encode(operation)


def decode_operation(data: bytes) -> Operation:
    """The operation that a message's value says. Raises msgspec.DecodeError."""
    return _decode(data)


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What the log of operations says of one, and of how a replay ended: who, when, why, result."""

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


def encode_done(done: Done) -> bytes:
    """The value of a record in the log of operations."""
    return _encode(done)
