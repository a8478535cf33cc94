"""A participant's row: the state of a step of a saga here."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from streams.model.message import Row
from streams.saga.messages import Command, Reply, ReplyOutcome

Work = Literal["working", "done", "refused", "cancelled", "undoing", "undone"]


class Participation(Row, frozen=True, kw_only=True):
    """A participant's part in one step of a saga.

    Attributes:
        status: of the step.
        saga_id: which saga: <definition>:<key>.
        step: which of its steps.
        command_id: the command that was taken last, to which a later answer goes.
        attempt: the highest number of a command that was taken.
        reason: why it was refused; empty otherwise.
        data: the reply to the command, as JSON; may be empty.
    """

    status: Annotated[
        Work,
        msgspec.Meta(
            title="Work",
            description="Its state; working and undoing: the answer comes later. cancelled: it was"
            " not begun in time, and is not to be. undone: also when there was nothing to undo.",
        ),
    ]
    saga_id: str
    step: str
    command_id: str
    attempt: int
    reason: str = ""
    data: bytes = b""

    @classmethod
    def of(cls, command: Command, status: Work, reason: str = "", data: bytes = b"") -> Participation:
        """The outcome of a command."""
        return cls(
            status=status,
            saga_id=command.saga_id,
            step=command.step,
            command_id=command.command_id,
            attempt=command.attempt,
            reason=reason,
            data=data,
        )

    def asked_by(self, command: Command) -> Participation:
        """The same, but it answers this command from now on."""
        attempt = max(self.attempt, command.attempt)
        return msgspec.structs.replace(self, command_id=command.command_id, attempt=attempt)

    def reply(self, kind: type[Reply]) -> Reply:
        """The reply to the last command. Raises ValueError while the answer is to come."""
        outcomes: dict[Work, ReplyOutcome] = {"done": "success", "refused": "refused", "undone": "success"}
        if self.status not in outcomes:
            raise ValueError(f"step {self.step} of {self.saga_id} is {self.status}: there is no answer yet")
        return kind(
            saga_id=self.saga_id,
            step=self.step,
            command_id=self.command_id,
            outcome=outcomes[self.status],
            reason=self.reason,
            data=self.data if self.status == "done" else b"",
        )

    def answered(self, status: Literal["done", "refused", "undone"], reason: str = "") -> Participation:
        """With the answer that was to come; the handler that has it sends `reply(...)` of this."""
        return msgspec.structs.replace(self, status=status, reason=reason)
