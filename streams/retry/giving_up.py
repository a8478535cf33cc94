"""The last step of a message that a handler does not take: a reply to whoever asked, or a dead letter."""

from __future__ import annotations

import structlog

from streams.dead_letters.table import DeadLetters
from streams.retry.queue import is_replay
from streams.staging.arrival import Attempt
from streams.staging.outcomes import OutcomeWriter

log = structlog.get_logger(__name__)


class GivingUp:
    """Stages it for the messages of one lane."""

    def __init__(self, writer: OutcomeWriter, letters: DeadLetters) -> None:
        self._writer = writer
        self._letters = letters

    def give_up(self, attempt: Attempt, error: Exception, now: float) -> None:
        """The handler replies to whoever asked, or the message becomes a dead letter."""
        if not self.reply_on_give_up(attempt, error, now):
            self.dead_letter(attempt, error, now)

    def reply_on_give_up(self, attempt: Attempt, error: Exception, now: float) -> bool:
        """Whether the handler replies to whoever asked. It does not for a replay, which an operator has asked
        for, nor for a message whose payload is elsewhere.
        """
        arrival, handler = attempt.arrival, attempt.handler
        if handler.on_give_up is None or arrival.message is None or is_replay(arrival.record):
            return False
        try:
            reply = handler.on_give_up(arrival.message, error)
            self._writer.stage(arrival, handler, reply, attempt.inbox_key, now)
        except Exception:
            log.exception("reply_on_give_up_failed", handler=handler.name, action="it is a dead letter")
            return False
        return True

    def dead_letter(self, attempt: Attempt, error: Exception, now: float, *, holds: bytes = b"") -> None:
        """The message becomes a dead letter; `holds` is the name of the queue that waits for it."""
        self._letters.give_up(attempt, error, now, holds=holds)
