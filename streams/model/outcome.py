"""Outcomes: what a handler decides to change, send and schedule. The lane applies them later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from streams.model.message import Message


def _no_message() -> Message:
    raise TypeError("a timer has no message: give message=..., which is sent when the timer is due")


class Timer(msgspec.Struct, frozen=True):
    """A message that is sent at a later time, unless the timer is cancelled by name before.

    A timer belongs to the handler and the key that set it. Setting the same name again replaces it.

    Attributes:
        name: name within the handler and the key.
        due: when the message is sent, in epoch seconds. Use it for a date.
        message: the message to send.
        after: when the message is sent, in seconds from now. Use it for a duration, instead of `due`: a clock
            that is wrong now then does not delay the timer (docs/adr/0077).
    """

    name: str
    due: float = 0.0
    message: Message = msgspec.field(default_factory=_no_message)
    after: float = 0.0


class Outcome(msgspec.Struct, frozen=True):
    """The decision of a handler about one message. It is committed as a whole or not at all.

    Attributes:
        rows: new rows by the handler's parameter. None deletes a row, and a parameter that is left out keeps
            its row. For a parameter declared with `Table.any` the value is a mapping from subkeys to rows.
        send: messages to send.
        timers: timers to set.
        cancel: names of timers to cancel before `timers` are set.
        note: why nothing, or something unusual, happened. Stored in the inbox and logged.
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
    """Make the outcome of a handler: `outcome(payment=captured, send=[...])`.

    Arguments:
        send: messages to send; their classes must be in the handler's `sends`.
        timers: messages to send later.
        cancel: names of the handler's timers under this key to cancel. A timer that is also in `timers` is
            set.
        note: why the handler decided so. Stored in the inbox and logged.
        rows: new rows by the handler's parameter. None deletes the row.
    """
    return Outcome(rows, send, timers, cancel, note)


def nothing(note: str) -> Outcome:
    """Make an outcome without changes, for a message that is repeated or outdated. `note` says why."""
    return Outcome({}, note=note)
