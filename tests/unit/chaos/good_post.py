"""Topics that are written to one message after the other, as the orders of a small run call for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from good_rows import SCARCE
from good_sagas import GoodSaga

from agents.commands import OrderSubmitted
from agents.messages import (
    DocumentsPacked,
    LineRefused,
    LineReleased,
    LineReserved,
    OrderCancelled,
    OrderConfirmed,
    OrderDocumented,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    ReleaseLine,
    ReserveLine,
    ShipLine,
    ShipmentFailed,
    ShipmentScheduled,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from chaos.evidence.consequences import SentMessage
from chaos.evidence.in_postgres import SOURCE
from demo.purchases import ExpectedOutcome
from demo.trouble import Poison
from streams.model.layout import partition_of
from streams.model.message import Message
from streams.ports import TP, Headers

PARTITIONS = 4


@dataclass
class Written:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    headers: Headers = ()


@dataclass
class Post:
    """Topics that are written to one message after the other."""

    messages: list[SentMessage] = field(default_factory=list)
    compensations: Counter[tuple[str, str]] = field(default_factory=Counter)
    ends: Counter[TP] = field(default_factory=Counter)
    poison: list[Written] = field(default_factory=list)
    sagas: list[GoodSaga] = field(default_factory=list)
    _ids: count[int] = field(default_factory=count)

    def send(
        self, kind: type[Message], key: str, cause: SentMessage | None = None, name: str = ""
    ) -> SentMessage:
        tp = TP(kind.TOPIC, partition_of(key.encode(), PARTITIONS))
        source, because = ("demo", "") if cause is None else ("app/service", cause.message_id)
        if kind in (OrderPlaced, OrderSubmitted):
            source = SOURCE
        sent = SentMessage(*tp, self.ends[tp], key, name or f"m-{next(self._ids)}", source, because)
        self.messages.append(sent)
        self.ends[tp] += 1
        return sent

    def give_back(self, order_id: str, skus: list[str], cause: SentMessage) -> SentMessage | None:
        """Ask for each of these pieces; the last answer, which leads on."""
        answer = None
        for sku in skus:
            command = self.send(ReleaseLine, sku, cause)
            answer = self.send(LineReleased, order_id, command)
            for topic in (ReleaseLine.TOPIC, LineReleased.TOPIC):
                self.compensations[topic, f"{sku} in {order_id}"] += 1
        return answer

    def release(self, order_id: str, skus: list[str], cause: SentMessage) -> None:
        if (last := self.give_back(order_id, skus, cause)) is not None:
            self.send(StockReleased, order_id, last)
            self.compensations[StockReleased.TOPIC, order_id] += 1

    def spoil(self, poison: Poison) -> None:
        key, value, headers = poison.record
        tp = TP(poison.topic, partition_of(key or b"", PARTITIONS))
        self.poison.append(Written(*tp, self.ends[tp], key, value, headers=headers))
        self.ends[tp] += 1

    def pack(self, order_id: str, placed: SentMessage) -> None:
        documented = self.send(OrderDocumented, order_id, placed)
        self.send(DocumentsPacked, order_id, documented)

    def conduct(
        self,
        order_id: str,
        skus: list[str],
        outcomes: list[str],
        *,
        began: float,
        with_files: bool,
        questioned: str = "",
    ) -> None:
        submitted = self.send(OrderSubmitted, order_id, name=f"placed-{order_id}")
        saga = GoodSaga(self, order_id, skus, began, questioned=questioned)
        saga.run(SCARCE, outcomes, submitted)
        self.sagas.append(saga)
        if with_files:
            self.pack(order_id, submitted)

    def settle(self, order_id: str, skus: list[str], wanted: ExpectedOutcome, *, with_files: bool) -> None:
        placed = self.send(OrderPlaced, order_id, name=f"placed-{order_id}")
        if with_files:
            self.pack(order_id, placed)
        commands = [self.send(ReserveLine, sku, placed) for sku in skus]
        answers = [self.send(LineRefused if a.key in SCARCE else LineReserved, order_id, a) for a in commands]
        if wanted is ExpectedOutcome.OUT_OF_STOCK:
            failed = self.send(StockReservationFailed, order_id, answers[-1])
            self.release(order_id, [sku for sku in skus if sku not in SCARCE], answers[-1])
            self.send(OrderCancelled, order_id, failed)
            return
        reserved = self.send(StockReserved, order_id, answers[-1])
        if wanted is ExpectedOutcome.DECLINED:
            failed = self.send(PaymentFailed, order_id, reserved)
            self.send(OrderCancelled, order_id, failed)
            self.release(order_id, skus, failed)
            return
        captured = self.send(PaymentCaptured, order_id, reserved)
        if wanted is ExpectedOutcome.NOWHERE:
            failed = self.send(ShipmentFailed, order_id, captured)
            self.send(OrderCancelled, order_id, failed)
            self.send(PaymentRefunded, order_id, failed)
            self.compensations[PaymentRefunded.TOPIC, order_id] += 1
            self.release(order_id, skus, failed)
            return
        scheduled = self.send(ShipmentScheduled, order_id, captured)
        self.send(OrderConfirmed, order_id, scheduled)
        for sku in skus:
            self.send(ShipLine, sku, scheduled)
