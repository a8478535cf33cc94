"""A handler's decision: rows changed, messages to send, timers to set. Values; nothing has happened yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from streams.model.message import Message


def _no_message() -> Message:
    raise TypeError("a timer has no message: give message=..., which is sent when the timer is due")


class Timer(msgspec.Struct, frozen=True):
    """A message to be sent when its time has come, unless it is cancelled by name before.

    It belongs to the handler and key that set it; setting the same name again moves it.

    Attributes:
        due: when it is due, in seconds since the epoch. A date stays what it is.
        after: how long after now it is due, in seconds. Give it for a duration, in place of `due`: a clock
            that was wrong when the timer was set then does not delay it (docs/adr/0077).
    """

    name: str
    due: float = 0.0
    message: Message = msgspec.field(default_factory=_no_message)
    after: float = 0.0


class Outcome(msgspec.Struct, frozen=True):
    """All that one message changes; committed as a whole or not at all.

    Attributes:
        rows: by the handler's parameters; None deletes, a name left out stays as it is. Of a table that the
            handler has `any` row of, there is a mapping from subkeys to rows.
        send, timers, cancel: messages to send, timers to set, and names of timers to cancel before.
        note: why nothing, or something unusual, happened; for the inbox and the log.
    """

    rows: Mapping[str, Any]
    send: Sequence[Message] = ()
    timers: Sequence[Timer] = ()
    cancel: Sequence[str] = ()
    note: str = ""


def outcome(
    *,
    send: Sequence[Message] = (),
    timers: Sequence[Timer] = (),
    cancel: Sequence[str] = (),
    note: str = "",
    **rows: Any,
) -> Outcome:
    """The decision of a handler: `outcome(payment=captured, send=[...])`.

    Arguments:
        send: messages, of classes that the handler is declared with.
        timers: messages to be sent later.
        cancel: names of this handler's timers under this key that are not needed any more; one that `timers`
            sets anew stays.
        note: why it decides so, for the inbox and the log.
        rows: by the handler's parameters; None deletes the row.
    """
    return Outcome(rows, send, timers, cancel, note)


def nothing(note: str) -> Outcome:
    """No change, and why: the message is repeated or overtaken."""
    return Outcome({}, note=note)
