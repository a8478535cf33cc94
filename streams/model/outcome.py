"""A handler's decision: rows changed, messages to send, timers to set. Values; nothing has happened yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from streams.model.message import Message


class Timer(msgspec.Struct, frozen=True):
    """A message to be sent when its time has come, unless it is cancelled by name before.

    It belongs to the handler and key that set it; setting the same name again moves it.
    `due` is in seconds since the epoch.
    """

    name: str
    due: float
    message: Message


class Outcome(msgspec.Struct, frozen=True):
    """All that one message changes; committed as a whole or not at all.

    `rows` is keyed by the handler's parameter names; None deletes, a name left out stays as it is. Of a table
    that the handler has `any` row of, there is a mapping from subkeys to rows.
    `note` says in the inbox and the log why nothing, or something unusual, happened.
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
    """An outcome, with rows named as the handler names them: `outcome(payment=captured, send=[...])`."""
    return Outcome(rows, send, timers, cancel, note)


def nothing(note: str) -> Outcome:
    """Nothing to do, and why: a repeated or overtaken message."""
    return Outcome({}, note=note)
