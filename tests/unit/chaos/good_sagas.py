"""Sagas of a small run, made message by message: as their orders call for, or late at one of their steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agents import messages
from agents.commands import CancelOrder, ConfirmOrder, OrderSagaReply
from chaos.evidence.saga_records import STEPS, CommandRecord, Replied, SagaHistory, SagaMessages, StepRecord
from chaos.judges.saga_ways import LATE, UNCERTAIN
from schemas import latest
from streams.model.codecs import AvroCodec, Schemas, encode_row
from streams.model.row_keys import row_key
from streams.saga.participation import Participation
from streams.saga.state import SagaRow, StepState

if TYPE_CHECKING:
    from good_post import Post

    from chaos.evidence.consequences import SentMessage

RESERVING = STEPS[0]
TIMEOUT = 30.0
_participations = {each.table: AvroCodec(Participation, latest(each.table), Schemas()) for each in STEPS}


@dataclass
class GoodSaga:
    """One saga, from its order to its end; `began` in seconds since the epoch.

    Attributes:
        handled: the message that the saga has handled last.
        rows: its participants' rows, by table: changelog key and value.
        questioned: the step whose participant is so far behind that its saga sends a question; empty: none.
    """

    post: Post
    order_id: str
    skus: list[str]
    began: float
    messages: SagaMessages = field(default_factory=SagaMessages)
    rows: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    questioned: str = ""

    def run(self, scarce: set[str], outcomes: list[str], submitted: SentMessage) -> None:
        """Go through steps with these outcomes, and back after the last of them unless all succeeded."""
        self._scarce = scarce
        self._now, self._attempts = self.began, dict.fromkeys(STEPS, 0)
        self._status = {step.name: "pending" for step in STEPS}
        self.handled = submitted
        self._tell("", "", "started")
        for step, outcome in zip(STEPS, outcomes, strict=False):
            self._go(step, outcome)
        if outcomes == ["success"] * len(STEPS):
            self._tell("", "started", "completing")
            self._tell("", "completing", "completed")
            self._confirm()
            self.status = "completed"
            return
        self._tell("", "started", "compensating")
        reached = list(zip(STEPS, outcomes, strict=False))
        for step, outcome in reversed(reached):
            if outcome == "success" or outcome in UNCERTAIN:
                self._undo(step)
        self._tell("", "compensating", "compensated")
        self.post.send(
            messages.OrderCancelled, self.order_id, self.post.send(CancelOrder, self.order_id, self.handled)
        )
        self.status = "compensated"

    def row(self) -> SagaRow:
        steps = tuple(
            StepState(name=step.name, action="", compensation="", status=self._status[step.name])
            for step in STEPS
        )
        return SagaRow(
            saga_id=f"order:{self.order_id}", version=1, status=self.status, current_step="", steps=steps,
            created_at=self.began, start=b"{}",
        )  # fmt: skip

    def _go(self, step: StepRecord, outcome: str) -> None:
        command = self._ask(step, step.do)
        self._change(step, "in_progress")
        if outcome in LATE or step.name == self.questioned:
            question = self._ask_after(step, command)
        if outcome in LATE:
            self.handled = self._reply(question.sent, command, outcome)
            self._now += 1
            self._reply(command.sent, command, "cancelled")  # when its turn comes
            self._now -= 1
        else:
            self.handled = self._work(step, command, outcome)
        done = {"success": "done", "refused": "refused", "cancelled": "cancelled"}
        self._row(step, done.get(outcome, "undone"))
        self._change(step, "completed" if outcome == "success" else "failed")

    def _ask_after(self, step: StepRecord, command: CommandRecord) -> CommandRecord:
        """Its deadline comes, and the participant is behind."""
        self._now = command.decided + TIMEOUT
        ring = self._reply(self.handled, command, "timed_out")
        sent = self.post.send(step.do, self.order_id, ring)
        question = CommandRecord(sent, command.command_id, self._now, self._now)
        self.messages.questions.append(question)
        self._tell(step.name, "in_progress", "in_progress")
        self._now += 0.1
        return question

    def _work(self, step: StepRecord, command: CommandRecord, outcome: str) -> SentMessage:
        cause = self._reserve(command.sent) if step is RESERVING else command.sent
        return self._reply(cause, command, outcome)

    def _reserve(self, command: SentMessage) -> SentMessage:
        asks = [self.post.send(messages.ReserveLine, sku, command) for sku in self.skus]
        answers = [
            self.post.send(
                messages.LineRefused if each.key in self._scarce else messages.LineReserved,
                self.order_id,
                each,
            )
            for each in asks
        ]
        settled = self._settled(answers[-1])
        if self._scarce & set(self.skus):
            self._release([sku for sku in self.skus if sku not in self._scarce], answers[-1])
        return settled

    def _release(self, skus: list[str], cause: SentMessage) -> SentMessage | None:
        last = self.post.give_back(self.order_id, skus, cause)
        return last and self._settled(last)

    def _undo(self, step: StepRecord) -> None:
        command = self._ask(step, step.undo)
        self._change(step, "compensating")
        cause: SentMessage | None = command.sent
        if step is RESERVING:
            cause = self._release(self.skus, command.sent)
        assert cause is not None
        self.handled = self._reply(cause, command, "success")
        self._row(step, "undone")
        self._change(step, "compensated")

    def _confirm(self) -> None:
        confirm = self.post.send(ConfirmOrder, self.order_id, self.handled)
        self.post.send(messages.OrderConfirmed, self.order_id, confirm)
        for sku in self.skus:
            self.post.send(messages.ShipLine, sku, confirm)

    def _ask(self, step: StepRecord, kind: type) -> CommandRecord:
        self._attempts[step] += 1
        sent = self.post.send(kind, self.order_id, self.handled)
        command = CommandRecord(
            sent, f"order:{self.order_id}:{step.name}:{self._attempts[step]}", self._now, self._now
        )
        self.messages.commands.append(command)
        self._now += 0.1
        return command

    def _reply(self, cause: SentMessage, command: CommandRecord, outcome: str) -> SentMessage:
        sent = self.post.send(OrderSagaReply, self.order_id, cause)
        self.messages.replies.append(Replied(sent, command.command_id, outcome, self._now, self._now))
        self._now += 0.1
        return sent

    def _settled(self, cause: SentMessage) -> SentMessage:
        return self.post.send(messages.ReservationSettled, self.order_id, cause)

    def _tell(self, step: str, before: str, after: str) -> None:
        self.messages.transitions.append(SagaHistory(len(self.messages.transitions) + 1, step, before, after))

    def _change(self, step: StepRecord, status: str) -> None:
        self._tell(step.name, self._status[step.name], status)
        self._status[step.name] = status

    def _row(self, step: StepRecord, status: str) -> None:
        saga = f"order:{self.order_id}"
        part = Participation(status=status, saga_id=saga, step=step.name, command_id="c", attempt=1)
        key = row_key(self.order_id.encode(), f"{saga}:{step.name}".encode())
        self.rows[step.table] = key, encode_row(_participations[step.table], part)
