"""The three kinds of messages, and what every one of a kind says, whatever its class is."""

from __future__ import annotations

from enum import StrEnum

from streams.model.message import Message
from streams.saga.messages import Command, Reply


class Kind(StrEnum):
    """Kinds of a message: a change to an aggregate, a command, or the reply to one."""

    EVENT = "event"
    COMMAND = "command"
    REPLY = "reply"


class StatusCode(StrEnum):
    """How a command ended, for those that do not know the outcomes of sagas."""

    SUCCESS = "success"
    ERROR = "error"
    SYSTEM_ERROR = "system error"


def kind_of(message: Message) -> Kind:
    """A message's kind, by its class."""
    if isinstance(message, Command):
        return Kind.COMMAND
    return Kind.REPLY if isinstance(message, Reply) else Kind.EVENT


def saga_of(message: Message) -> str | None:
    """The saga that a command or a reply belongs to."""
    return message.saga_id if isinstance(message, Command | Reply) else None


def reply_topic_of(message: Message) -> str | None:
    """Where a command wants its reply."""
    return type(message).REPLY.TOPIC if isinstance(message, Command) else None


def status_of(message: Message) -> StatusCode | None:
    """A reply's status. Error: the command was not done; system error: it may or may not have been."""
    if not isinstance(message, Reply):
        return None
    if message.outcome == "success":
        return StatusCode.SUCCESS
    return (
        StatusCode.ERROR
        if message.outcome in ("refused", "expired", "cancelled")
        else StatusCode.SYSTEM_ERROR
    )
