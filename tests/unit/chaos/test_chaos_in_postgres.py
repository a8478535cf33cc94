"""What the checker finds of orders that came by the orders API: each finding goes red for what is wrong."""

from collections.abc import Callable
from typing import Any

import pytest

from agents.cancellation import CancellationRefused, RequestCancellation
from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from chaos.evidence.consequences import SentMessage
from chaos.evidence.in_postgres import (
    SOURCE,
    DatabaseEvidence,
    OrderRow,
    OutboxRecord,
    judge_accepted,
    judge_outbox,
    judge_status,
    nowhere,
)
from chaos.rig.records import Request
from demo.findings import Finding

pytestmark = pytest.mark.promise("chaos", "each finding of the checker goes red when its fault is planted")

case = pytest.param


def request(order_id: str, placed: int = 202) -> Request:
    return Request(order_id=order_id, way="placed", placed=placed)


def sent(kind: type, order_id: str, name: str, time: float, source: str = SOURCE) -> SentMessage:
    return SentMessage(kind.TOPIC, 0, 0, order_id, f"{order_id}:{name}", source, "", time)


Spoil = Callable[["Story"], object]


class Story:
    """Of four orders: one confirmed, one called off, one unanswered and there, one unanswered and nowhere."""

    def __init__(self) -> None:
        self.requests = [
            request("good"),
            Request(order_id="off", way="placed", placed=202, called_off=202),
            request("unheard", placed=0),
            request("gone", placed=503),
        ]
        orders = [
            OrderRow("good", "placed", "confirmed", "", "none"),
            OrderRow("off", "submitted", "cancelled", "called_off", "requested"),
            OrderRow("unheard", "placed", "confirmed", "", "none"),
            OrderRow("other", "unknown", "cancelled", "card_declined", "none"),
        ]
        outbox = [
            OutboxRecord("good:begins", "good", OrderPlaced.TOPIC, True),
            OutboxRecord("off:begins", "off", OrderSubmitted.TOPIC, True),
            OutboxRecord("off:cancellation", "off", RequestCancellation.TOPIC, True),
            OutboxRecord("unheard:begins", "unheard", OrderPlaced.TOPIC, True),
        ]
        self.database = DatabaseEvidence(orders, outbox)
        self.messages = [
            sent(OrderPlaced, "good", "begins", 1.0),
            sent(OrderSubmitted, "off", "begins", 2.0),
            sent(RequestCancellation, "off", "cancellation", 3.0),
            sent(OrderPlaced, "unheard", "begins", 4.0),
            sent(OrderPlaced, "other", "begins", 5.0, source="demo"),
            sent(OrderSubmitted, "off", "begins", 6.0),  # a relay that was killed has written it again
        ]
        self.on_kafka = {each.order_id: (each.status, each.reason) for each in orders}

    def lose(
        self, *, orders: int | None = None, outbox: int | None = None, messages: int | None = None
    ) -> None:
        """The row or the message with this number; an order that is lost everywhere is in no table."""
        if orders is not None:
            lost = self.database.orders.pop(orders)
            if messages is not None:
                del self.on_kafka[lost.order_id]
        if outbox is not None:
            del self.database.outbox[outbox]
        if messages is not None:
            del self.messages[messages]

    def red(self) -> set[str]:
        return {each.name for each in self.found() if not each.passed}

    def found(self) -> tuple[Finding, Finding, Finding]:
        return (
            judge_accepted(self.requests, self.database, self.messages),
            judge_status(self.database, self.on_kafka, self.messages),
            judge_outbox(self.database, self.messages),
        )


ONCE, STATUS, OUTBOX = (each.name for each in Story().found())


def test_what_went_well_is_green_and_counted() -> None:
    once, status, outbox = Story().found()
    assert Story().red() == set()
    assert once.says == ("2 accepted over HTTP, 2 not (1 of them are there); 1 came twice under one name")
    assert status.says == "2 confirmed, 2 cancelled"
    assert outbox.says == "4 rows, 1 orders with more than one"


def test_only_what_was_not_accepted_may_be_nowhere() -> None:
    story = Story()
    assert nowhere(story.requests, story.database, story.messages) == {"gone"}
    story.lose(orders=0, messages=0)
    assert nowhere(story.requests, story.database, story.messages) == {"gone"}


def row(at: int, **changes: Any) -> Spoil:
    def spoil(story: Story) -> None:
        orders = story.database.orders
        orders[at] = orders[at]._replace(**changes)

    return spoil


def sent_too(*those: Any, **more: Any) -> Spoil:
    return lambda story: story.messages.append(sent(*those, **more))


def never_published(story: Story) -> None:
    story.database.outbox[0] = story.database.outbox[0]._replace(published=False)


def overtaken(story: Story) -> None:
    story.messages[2] = story.messages[2]._replace(time=1.5)


@pytest.mark.parametrize(
    ("spoil", "finds"),
    [
        case(lambda s: s.lose(orders=0), {ONCE, STATUS}, id="lost in PostgreSQL"),
        case(lambda s: s.lose(messages=0), {ONCE, OUTBOX}, id="lost on Kafka"),
        case(lambda s: s.lose(orders=0, outbox=0, messages=0), {ONCE}, id="lost on both sides"),
        case(lambda s: s.lose(messages=3), {ONCE, OUTBOX}, id="unanswered, only in PostgreSQL"),
        case(row(2, way="unknown"), {ONCE}, id="unanswered, only on Kafka"),
        case(sent_too(OrderPlaced, "good", "again", 7.0), {ONCE, OUTBOX}, id="twice on Kafka"),
        case(sent_too(OrderSubmitted, "good", "begins", 7.0), {ONCE, OUTBOX}, id="went both ways"),
        case(lambda s: s.database.orders.append(s.database.orders[0]), {ONCE}, id="twice in PostgreSQL"),
        case(lambda s: s.requests.pop(0), {ONCE}, id="without a request"),
        case(row(0, status="pending"), {STATUS}, id="another status"),
        case(row(3, reason="out_of_stock"), {STATUS}, id="another reason"),
        case(lambda s: s.lose(orders=-1), {STATUS}, id="never projected"),
        case(
            lambda s: s.database.orders.append(OrderRow("stranger", "unknown", "confirmed", "", "none")),
            {STATUS},
            id="projected out of nothing",
        ),
        case(
            sent_too(CancellationRefused, "off", "any", 8.0, source="orders"),
            {STATUS},
            id="refusal without a status",
        ),
        case(never_published, {OUTBOX}, id="never published"),
        case(lambda s: s.lose(messages=2), {ONCE, OUTBOX}, id="marked and not written"),
        case(lambda s: s.lose(messages=2, outbox=2), {ONCE}, id="a cancellation lost everywhere"),
        case(lambda s: s.lose(outbox=2), {OUTBOX}, id="no row of it"),
        case(overtaken, {OUTBOX}, id="overtaken"),
    ],
)
def test_it_goes_red(spoil: Spoil, finds: set[str]) -> None:
    story = Story()
    spoil(story)
    assert story.red() == finds


def test_an_accepted_order_is_known_by_its_status_alone() -> None:
    assert request("any").accepted
    assert not request("any", placed=0).accepted
