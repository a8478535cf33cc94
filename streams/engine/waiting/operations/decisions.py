"""Decide operations on dead letters and handlers, without I/O. An operation is a message to the lane, so it
happens once, in order with everything else about the letter's key (docs/adr/0011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from streams.engine.waiting.dead_letters.row import Event, Letter, LetterState, capped, remember
from streams.model.claim import without_claim
from streams.model.envelope import CAUSATION, CORRELATION, FINGERPRINT, ID, derived_id
from streams.model.operations import (
    HandlerCommand,
    HandlerOperation,
    HandlerPause,
    LetterCommand,
    Operation,
    PauseState,
)


@dataclass(frozen=True, slots=True)
class OperationLimits:
    """Limits: the number of failed replays that parks a letter, and whether operators may edit messages."""

    max_replays: int = 3
    edit: bool = False


class Do(StrEnum):
    """What follows an operation, besides the change of the row."""

    NOTHING = "nothing"
    REPLAY = "replay"  # the handler must see the message again
    RELEASE = "release"  # the letter or its replay leaves its queue, and messages behind it continue


@dataclass(frozen=True, slots=True)
class LetterDecision:
    """The new row of a letter (None: there is no letter), what follows, and the result in words."""

    letter: Letter | None
    do: Do
    result: str


def decide_letter(
    letter: Letter | None,
    operation: Operation,
    *,
    id_bytes: bytes,
    now_ms: int,
    limits: OperationLimits,
    gone: bool = False,
) -> LetterDecision:
    """Decide an operation on a dead letter. A refused operation is only recorded, so it does not matter how
    often and in which order operations come. `id_bytes` is the operation's id. `gone`: the letter's handler
    does not exist any more, or no longer takes the topic, so a replay would wait for ever.
    """
    if letter is None:
        return LetterDecision(None, Do.NOTHING, "refused: there is no such dead letter (any more)")
    if why := _why_not(letter, operation, limits, gone=gone):
        return refused(letter, operation, now_ms, why)
    match operation.kind:
        case LetterCommand.DISCARD:
            after, do, result = (
                replace(letter, state=LetterState.DISCARDED, queue=b""),
                Do.NOTHING,
                "discarded",
            )
            do = Do.RELEASE if letter.queue or letter.state is LetterState.REPLAYING else Do.NOTHING
        case LetterCommand.RESTORE:
            parked = letter.replays >= limits.max_replays
            after = replace(letter, state=LetterState.PARKED if parked else LetterState.DEAD)
            do, result = Do.NOTHING, "restored"
        case LetterCommand.REPLAY:
            after, do, result = replace(letter, state=LetterState.REPLAYING), Do.REPLAY, "replaying"
        case LetterCommand.EDIT:
            after, do = replace(edited(letter, operation, id_bytes), state=LetterState.REPLAYING), Do.REPLAY
            result = f"edited and replaying as {_id_of(after)}, it was {_id_of(letter)}"
    return LetterDecision(_with_event(after, operation, now_ms, result), do, result)


def refused(letter: Letter, operation: Operation, now_ms: int, why: str) -> LetterDecision:
    """Refuse an operation: the letter only gets an event in its history."""
    result = f"refused: {why}"
    return LetterDecision(_with_event(letter, operation, now_ms, result), Do.NOTHING, result)


def _why_not(letter: Letter, operation: Operation, limits: OperationLimits, *, gone: bool) -> str:
    if letter.state is LetterState.REPLAYING and not gone:
        return "it is being replayed"
    if letter.state is LetterState.REPLAYING and operation.kind is not LetterCommand.DISCARD:
        return (
            f"its replay waits for {letter.handler}, which no longer takes {letter.topic}: discard it first"
        )
    match operation.kind:
        case LetterCommand.DISCARD:
            if not operation.why:
                return "a discard needs a reason"
            return "it is already discarded" if letter.state is LetterState.DISCARDED else ""
        case LetterCommand.RESTORE:
            return "" if letter.state is LetterState.DISCARDED else "it is not discarded"
        case LetterCommand.EDIT if not limits.edit:
            return "editing is not enabled: see the setting edit_dead_letters"
        case LetterCommand.EDIT if operation.value is None and operation.headers is None:
            return "give a new value or new headers"
        case LetterCommand.EDIT if letter.omitted and (operation.value is None or operation.headers is None):
            return "value and headers are not kept: give both"
        case LetterCommand.EDIT if letter.is_raw and (operation.value is None or operation.headers is None):
            return "it is not a message, but unreadable bytes: give value and headers"
        case LetterCommand.REPLAY if letter.is_raw:
            return "it is not a message, but unreadable bytes: edit or discard it"
        case LetterCommand.REPLAY if letter.omitted:
            return f"its bytes are not kept, they are in {letter.topic} at offset {letter.offset}"
    if letter.state is LetterState.DISCARDED:
        return "it was discarded: restore it first"
    if letter.state is LetterState.PARKED and not operation.force:
        return f"it is parked after {letter.replays} failed replays: force it"
    return ""


def edited(letter: Letter, operation: Operation, id_bytes: bytes) -> Letter:
    """The letter with an edited message, which is a new one, caused by the old one (docs/adr/0011)."""
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
    if value:  # else the payload travels by reference, and the reference stays
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


def _with_event(letter: Letter, operation: Operation, now_ms: int, result: str) -> Letter:
    event = Event(now_ms, operation.who, str(operation.kind), operation.why, result)
    return replace(letter, history=remember(letter.history, event))


@dataclass(frozen=True, slots=True)
class PauseDecision:
    """The new row of a handler in a partition (None: it runs), whether it changed, and the result as text."""

    pause: HandlerPause | None
    changed: bool
    result: str


def decide_pause(pause: HandlerPause | None, operation: HandlerOperation, *, now_ms: int) -> PauseDecision:
    """Decide an operation on a handler in a partition. If the handler is already in that state, nothing
    changes, not even the time and the operator of the pause.
    """
    state = None if pause is None else pause.state
    match operation.kind, state:
        case HandlerCommand.RESUME, None:
            return PauseDecision(None, False, "already running")
        case HandlerCommand.RESUME, _:
            return PauseDecision(None, True, f"running, it was {state}")
        case (HandlerCommand.PAUSE, PauseState.PAUSED | PauseState.DRAINED) | (
            HandlerCommand.DRAIN,
            PauseState.DRAINING | PauseState.DRAINED,
        ):
            return PauseDecision(pause, False, f"already {state}")
    after = PauseState.PAUSED if operation.kind is HandlerCommand.PAUSE else PauseState.DRAINING
    before = "" if state is None else f", it was {state}"
    return PauseDecision(HandlerPause(after, operation.who, operation.why, now_ms), True, f"{after}{before}")


def drained(pause: HandlerPause, now_ms: int) -> HandlerPause:
    """The pause of a handler that has finished draining in a partition."""
    return replace(pause, state=PauseState.DRAINED, since_ms=now_ms)
