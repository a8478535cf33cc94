"""What sagas and their participants have saga, read from the topics and tables, by order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from agents.commands import (
    CancelShipment,
    CapturePayment,
    OrderCommand,
    OrderSagaReply,
    OrderSagaTransition,
    RefundPayment,
    ReleaseStock,
    ReserveStock,
    ScheduleShipment,
)
from chaos.evidence.consequences import SentMessage
from chaos.evidence.decoding import TIME, decoder, epoch_seconds, rows_in
from chaos.evidence.stores import Rows

if TYPE_CHECKING:
    from streams.ports import Record


class StepRecord(NamedTuple):
    """A step of an order's saga: what does it, what undoes it, and the table of its participant."""

    name: str
    do: type[OrderCommand]
    undo: type[OrderCommand]
    table: str


#: An order's way, from the first step to the last.
STEPS = (
    StepRecord("reserve_inventory", ReserveStock, ReleaseStock, "inventory-steps"),
    StepRecord("process_payment", CapturePayment, RefundPayment, "payment-steps"),
    StepRecord("schedule_shipping", ScheduleShipment, CancelShipment, "shipping-steps"),
)

_commands = {kind.TOPIC: decoder(kind.TOPIC) for each in STEPS for kind in (each.do, each.undo)}
_reply = decoder(OrderSagaReply.TOPIC)
_transition = decoder(OrderSagaTransition.TOPIC)
_participations = {each.table: decoder(each.table) for each in STEPS}


class CommandRecord(NamedTuple):
    """A command, when it was written, and when that was decided; times in seconds since the epoch.

    Between the two is the commit before, which may last long while brokers are down. Deadlines count from
    the decision. One that had expired when it was decided on is only a question after the one before it.
    """

    sent: SentMessage
    command_id: str
    time: float
    decided: float


class Replied(NamedTuple):
    """A reply, or a timer of the saga, which is one too."""

    sent: SentMessage
    command_id: str
    outcome: str
    time: float
    decided: float


class SagaHistory(NamedTuple):
    """A transition that a saga has recorded."""

    number: int
    step: str
    before: str
    after: str


@dataclass
class SagaMessages:
    """All that was saga of one order's saga, each topic's in its order.

    Attributes:
        questions: messages after commands that had no reply in time.
    """

    commands: list[CommandRecord] = field(default_factory=list)
    questions: list[CommandRecord] = field(default_factory=list)
    replies: list[Replied] = field(default_factory=list)
    transitions: list[SagaHistory] = field(default_factory=list)


class SagaRecords:
    """Takes records as they are read.

    Attributes:
        by_order: what was saga, by order id.
    """

    def __init__(self) -> None:
        self.by_order: dict[str, SagaMessages] = defaultdict(SagaMessages)

    def take(self, record: Record, sent: SentMessage) -> None:
        """A message of the application, of which most have nothing to do with sagas."""
        time = record.timestamp / 1000
        decided = epoch_seconds(dict(record.headers).get(TIME, b"").decode()) or time
        if (decode := _commands.get(record.topic)) is not None:
            command = decode(record.value or b"")
            saga = self.by_order[sent.key]
            whose = saga.questions if 0 < command["expires"] < decided else saga.commands
            whose.append(CommandRecord(sent, command["command_id"], time, decided))
        elif record.topic == OrderSagaReply.TOPIC:
            reply = _reply(record.value or b"")
            replied = Replied(sent, reply["command_id"], reply["outcome"], time, decided)
            self.by_order[sent.key].replies.append(replied)

    def take_transition(self, record: Record) -> None:
        """A record of the topic of transitions."""
        entry = _transition(record.value or b"")
        history = SagaHistory(entry["number"], entry["step"], entry["before"], entry["after"])
        self.by_order[(record.key or b"").decode()].transitions.append(history)


def participations(tables: Iterable[Mapping[str, Rows]]) -> Iterator[tuple[str, str, str]]:
    """The participants' rows in the state of every lane: order, step and status."""
    those = list(tables)
    for step in STEPS:
        for order_id, _, row in rows_in(those, step.table, _participations[step.table]):
            yield order_id, row["step"], row["status"]
