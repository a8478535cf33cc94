"""The content of replies to a saga's commands."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.errors import Undecodable
from streams.model.codecs import NO_JSON
from streams.saga.definition import Step
from streams.saga.messages import TEXT_BOUND, Reply


def fields_of(value: msgspec.Struct | None) -> dict[str, Any]:
    """Data of a reply, by name."""
    return {} if value is None else {name: getattr(value, name) for name in value.__struct_fields__}


def data_of(step: Step, data: bytes) -> msgspec.Struct | None:
    """The data of a step's reply. Raises Undecodable."""
    if step.reply is None:
        return None
    try:
        return msgspec.json.decode(data, type=step.reply)
    except NO_JSON as error:
        raise Undecodable(f"the reply to step {step.name} is no {step.reply.__name__}: {error}") from error


def error_of(reply: Reply) -> str:
    """The error of a step's state, from a reply that is no success."""
    return f"{reply.outcome}: {reply.reason}"[:TEXT_BOUND] if reply.reason else reply.outcome


def reason_of(reply: Reply) -> str:
    """Why a saga goes back, as its end says it."""
    if reply.outcome == "cancelled":
        return "timed_out"  # the saga asked for its state when its time was over
    return reply.reason[:TEXT_BOUND] if reply.outcome == "refused" and reply.reason else reply.outcome
