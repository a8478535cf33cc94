"""The content of replies to a saga's commands."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.errors import Undecodable
from streams.model.codecs import NO_JSON
from streams.saga.definition import Step
from streams.saga.messages import TEXT_BOUND, Reply


def fields_of(value: msgspec.Struct | None) -> dict[str, Any]:
    """The fields of a reply's data or of a message, by name; empty for None."""
    return {} if value is None else {name: getattr(value, name) for name in value.__struct_fields__}


def data_of(step: Step, data: bytes) -> msgspec.Struct | None:
    """The decoded data of a step's reply; None if the step names no `reply` class. Raises Undecodable."""
    if step.reply is None:
        return None
    try:
        return msgspec.json.decode(data, type=step.reply)
    except NO_JSON as error:
        raise Undecodable(f"the reply to step {step.name} is no {step.reply.__name__}: {error}") from error


def error_of(reply: Reply) -> str:
    """The error text for a step's state, from an unsuccessful reply."""
    return f"{reply.outcome}: {reply.reason}"[:TEXT_BOUND] if reply.reason else reply.outcome


def reason_of(reply: Reply) -> str:
    """The saga's `reason` when this reply turns it back."""
    if reply.outcome == "cancelled":
        return "timed_out"  # a participant cancels when the saga asks after a timeout
    return reply.reason[:TEXT_BOUND] if reply.outcome == "refused" and reply.reason else reply.outcome
