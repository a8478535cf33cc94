"""What the checker finds of orders that came by the orders API: each finding goes red for what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from agents.cancellation import CancellationRefused, RequestCancellation
from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from chaos.consequences import Sent
from chaos.in_postgres import (
    SOURCE,
    Database,
    OrderRow,
    OutboxRow,
    judge_accepted,
    judge_outbox,
    judge_status,
    nowhere,
)
from chaos.records import Request
from demo.findings import Finding


def request(order_id: str, placed: int = 202) -> Request:
    return Request(order_id=order_id, way="placed", placed=placed)


def sent(kind: type, order_id: str, name: str, time: float, source: str = SOURCE) -> Sent:
    return Sent(kind.TOPIC, 0, 0, order_id, f"{order_id}:{name}", source, "", time)


@dataclass
class Story:
    """Of four orders: one confirmed, one called off, one unanswered and there, one unanswered and nowhere."""

    requests: list[Request] = field(
        default_factory=lambda: [
            request("good"),
            msgspec.structs.replace(request("off"), called_off=202),
            request("unheard", placed=0),
            request("gone", placed=503),
        ]
    )
    database: Database = field(
        default_factory=lambda: Database(
            [
                OrderRow("good", "placed", "confirmed", "", "none"),
                OrderRow("off", "submitted", "cancelled", "called_off", "requested"),
                OrderRow("unheard", "placed", "confirmed", "", "none"),
                OrderRow("other", "unknown", "cancelled", "card_declined", "none"),
            ],
            [
                OutboxRow("good:begins", "good", OrderPlaced.TOPIC, True),
                OutboxRow("off:begins", "off", OrderSubmitted.TOPIC, True),
                OutboxRow("off:cancellation", "off", RequestCancellation.TOPIC, True),
                OutboxRow("unheard:begins", "unheard", OrderPlaced.TOPIC, True),
            ],
        )
    )
    messages: list[Sent] = field(
        default_factory=lambda: [
            sent(OrderPlaced, "good", "begins", 1.0),
            sent(OrderSubmitted, "off", "begins", 2.0),
            sent(RequestCancellation, "off", "cancellation", 3.0),
            sent(OrderPlaced, "unheard", "begins", 4.0),
            sent(OrderPlaced, "other", "begins", 5.0, source="demo"),
            sent(OrderSubmitted, "off", "begins", 6.0),  # a relay that was killed has written it again
        ]
    )
    on_kafka: dict[str, tuple[str, str]] = field(
        default_factory=lambda: {
            "good": ("confirmed", ""),
            "off": ("cancelled", "called_off"),
            "unheard": ("confirmed", ""),
            "other": ("cancelled", "card_declined"),
        }
    )

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
    story.database.orders.pop(0)
    del story.messages[0]
    assert nowhere(story.requests, story.database, story.messages) == {"gone"}


def lost_in_postgres(story: Story) -> None:
    del story.database.orders[0]


def lost_on_kafka(story: Story) -> None:
    del story.messages[0]


def lost_on_both_sides(story: Story) -> None:
    del story.database.orders[0], story.database.outbox[0], story.messages[0], story.on_kafka["good"]


def half_unanswered_in_postgres(story: Story) -> None:
    del story.messages[3]


def half_unanswered_on_kafka(story: Story) -> None:
    story.database.orders[2] = story.database.orders[2]._replace(way="unknown")


def doubled_on_kafka(story: Story) -> None:
    story.messages.append(sent(OrderPlaced, "good", "again", 7.0))


def gone_both_ways(story: Story) -> None:
    story.messages.append(sent(OrderSubmitted, "good", "begins", 7.0))


def doubled_in_postgres(story: Story) -> None:
    story.database.orders.append(story.database.orders[0])


def never_asked_for(story: Story) -> None:
    story.requests.pop(0)


def another_status(story: Story) -> None:
    story.database.orders[0] = story.database.orders[0]._replace(status="pending")


def another_reason(story: Story) -> None:
    story.database.orders[3] = story.database.orders[3]._replace(reason="out_of_stock")


def never_projected(story: Story) -> None:
    story.database.orders.pop()


def projected_out_of_nothing(story: Story) -> None:
    story.database.orders.append(OrderRow("nobody", "unknown", "confirmed", "", "none"))


def refusal_not_told(story: Story) -> None:
    story.messages.append(sent(CancellationRefused, "off", "any", 8.0, source="orders"))


def never_published(story: Story) -> None:
    story.database.outbox[0] = story.database.outbox[0]._replace(published=False)


def marked_and_not_written(story: Story) -> None:
    del story.messages[2]


def cancellation_lost_on_both_sides(story: Story) -> None:
    del story.messages[2], story.database.outbox[2]


def no_row_of_it(story: Story) -> None:
    del story.database.outbox[2]


def overtaken(story: Story) -> None:
    story.messages[2] = story.messages[2]._replace(time=1.5)


@pytest.mark.parametrize(
    ("spoil", "finds"),
    [
        (lost_in_postgres, {ONCE, STATUS}),
        (lost_on_kafka, {ONCE, OUTBOX}),
        (lost_on_both_sides, {ONCE}),
        (half_unanswered_in_postgres, {ONCE, OUTBOX}),
        (half_unanswered_on_kafka, {ONCE}),
        (doubled_on_kafka, {ONCE, OUTBOX}),
        (gone_both_ways, {ONCE, OUTBOX}),
        (doubled_in_postgres, {ONCE}),
        (never_asked_for, {ONCE}),
        (another_status, {STATUS}),
        (another_reason, {STATUS}),
        (never_projected, {STATUS}),
        (projected_out_of_nothing, {STATUS}),
        (refusal_not_told, {STATUS}),
        (never_published, {OUTBOX}),
        (marked_and_not_written, {ONCE, OUTBOX}),
        (cancellation_lost_on_both_sides, {ONCE}),
        (no_row_of_it, {OUTBOX}),
        (overtaken, {OUTBOX}),
    ],
)
def test_it_goes_red(spoil: Callable[[Story], None], finds: set[str]) -> None:
    story = Story()
    spoil(story)
    assert story.red() == finds


def test_an_accepted_order_is_known_by_its_status_alone() -> None:
    assert request("any").accepted
    assert not msgspec.structs.replace(request("any"), placed=0).accepted
