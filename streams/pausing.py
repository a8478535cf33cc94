"""What operators do about a whole handler: a policy without I/O. A wish is a message to each partition, for a
handler lives in all of them; the wishes of a partition are settled in their order there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from streams.changes import HANDLER, LANE, Change
from streams.operations import EpochMs

#: What the type of such a message is, by which it is told from an operation on a dead letter.
HANDLER_OPERATION = "steadfaust.handler.operation"


class Wish(StrEnum):
    """What can be asked of a handler."""

    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"  # work off what waits already, then pause


class PauseState(StrEnum):
    """What a handler does in a partition where it does not just run."""

    PAUSED = "paused"  # nothing is tried
    DRAINING = "draining"  # what waited or was under way before is worked off; new messages wait
    DRAINED = "drained"  # all of that is done; as paused


class HandlerOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's wish about a handler, the value of a message. Its id is the message's.

    Attributes:
        kind: what is to be done.
        handler: by its name.
        who, why, at_ms: by whom, for what reason, when (epoch milliseconds).
    """

    kind: Wish
    handler: str
    who: str
    why: str
    at_ms: EpochMs


class Pause(msgspec.Struct, array_like=True, frozen=True):
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


@dataclass(frozen=True, slots=True)
class Settled:
    """What becomes of a handler in a partition: its row, None when it runs; whether that is new; in words."""

    pause: Pause | None
    changed: bool
    result: str


def decide(pause: Pause | None, operation: HandlerOperation, *, now_ms: int) -> Settled:
    """What an operation does to a handler in a partition. One that asks for what is so already changes
    nothing, not even since when and by whom.
    """
    state = None if pause is None else pause.state
    match operation.kind, state:
        case Wish.RESUME, None:
            return Settled(None, False, "already running")
        case Wish.RESUME, _:
            return Settled(None, True, f"running, it was {state}")
        case (Wish.PAUSE, PauseState.PAUSED | PauseState.DRAINED) | (
            Wish.DRAIN,
            PauseState.DRAINING | PauseState.DRAINED,
        ):
            return Settled(pause, False, f"already {state}")
    after = PauseState.PAUSED if operation.kind is Wish.PAUSE else PauseState.DRAINING
    before = "" if state is None else f", it was {state}"
    return Settled(Pause(after, operation.who, operation.why, now_ms), True, f"{after}{before}")


def drained(pause: Pause, now_ms: int) -> Pause:
    """All that a draining handler had to do in a partition is done."""
    return replace(pause, state=PauseState.DRAINED, since_ms=now_ms)


# -- on the wire and as a row -----------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(HandlerOperation).decode
_encode_pause = msgspec.msgpack.Encoder().encode
_decode_pause = msgspec.msgpack.Decoder(Pause).decode


def encode_handler_operation(operation: HandlerOperation) -> bytes:
    """An operation as the value of its message."""
    return _encode(operation)


def decode_handler_operation(data: bytes) -> HandlerOperation:
    """The operation that a message's value says. Raises msgspec.DecodeError."""
    return _decode(data)


def set_pause(handler: str, pause: Pause | None) -> Change:
    """The change of a handler's row; None takes it away."""
    return Change(LANE, HANDLER + handler.encode(), None if pause is None else _encode_pause(pause), pause)


def read_pause(data: bytes) -> Pause:
    """A handler's row from its value."""
    return _decode_pause(data)


class HandlerDone(msgspec.Struct, frozen=True, kw_only=True):
    """What the log of operations says of one about a handler, and of the end of a drain: in which partition,
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


def encode_handler_done(done: HandlerDone) -> bytes:
    """The value of a record in the log of operations."""
    return _encode(done)
