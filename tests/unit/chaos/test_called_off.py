"""Orders that are called off in a chaos run: what is sent of them, and what the checker finds."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from good_run import BOUGHT, good

from agents.cancellation import CancellationRefused, RequestCancellation
from agents.commands import OrderSubmitted, ReserveStock
from agents.gateway.wire import Charged, Refunded
from agents.messages import Order, OrderPlaced, StockReserved
from chaos.evidence.consequences import SentMessage
from chaos.evidence.evidence import Evidence
from chaos.judges.findings import findings
from chaos.load.called_off import (
    SKU,
    SUPPLY,
    UNITS,
    comings,
    is_apart,
    judge_called_off,
    order_beside,
    without_called_off,
)
from demo.evidence import DemoEvidence as Books
from demo.evidence import Settlement
from demo.findings import Finding
from tables.stock import StockLevel

pytestmark = pytest.mark.promise("chaos", "each finding of the checker goes red when its fault is planted")

case = pytest.param
SHARE = 0.1
MADE = [made for each in BOUGHT if (made := order_beside(each, SHARE)) is not None]
#: One that was called off too late, and one in time, after it was charged.
LATE, BACK = [each for each in MADE if each.total_cents][:2]


def sent(kind: type, key: str) -> SentMessage:
    return SentMessage(kind.TOPIC, 0, 0, key, f"{kind.__name__}-{key}", "orders", "")


def charged(order: Order) -> Charged:
    name = f"capture:{order.order_id}"
    return Charged(f"c-{name}", name, "captured", "", order.total_cents, "card", "now")


def refunded(order: Order) -> Refunded:
    name = order.order_id
    return Refunded(f"r-{name}", f"refund:{name}", f"capture:{name}", "refunded", order.total_cents, "now")


def run() -> tuple[Books, list[SentMessage]]:
    left = sum(line.units for line in LATE.lines)
    ends = [
        Settlement(f"end-{each.order_id}", each, "confirmed" if each is LATE else "cancelled")
        for each in MADE
    ]
    ledger = [charged(LATE), charged(BACK), refunded(BACK)]
    books = Books(
        settlements=ends,
        ledger=ledger,
        stock={SKU: StockLevel(received=UNITS, on_hand=UNITS - left, shipped=left)},
        received=Counter({SKU: UNITS}),
        shipped=Counter({SKU: left}),
    )
    return books, [sent(CancellationRefused, LATE.order_id), sent(StockReserved, LATE.order_id)]


def judged(books: Books, messages: list[SentMessage], *excused: Any) -> Finding:
    return judge_called_off(BOUGHT, SHARE, books, messages, *excused)


def test_orders_beside_are_called_off_some_before_they_come() -> None:
    every = [[*comings(each, SHARE)] for each in BOUGHT]
    made = [those for those in every if those]
    assert 5 < len(made) < 50
    assert [*comings(BOUGHT[0], 0.0)] == []
    kinds = Counter(type(each.message) for those in made for each in those)
    assert kinds[RequestCancellation] == len(made)
    assert kinds[OrderPlaced] + kinds[OrderSubmitted] > len(made), "some come both ways"
    assert any(those[0].after > those[-1].after for those in made), "some are called off before they come"
    assert all(is_apart(each.message.key) for those in made for each in those)
    assert is_apart(SUPPLY.key)


def test_what_ended_as_it_should_passes() -> None:
    found = judged(*run())
    assert found.passed, found.says
    assert found.says.startswith(f"{len(MADE)} orders: {len(MADE) - 1} cancelled, 1 confirmed")


def refund_twice(books: Books, _: list[SentMessage]) -> None:
    books.ledger += [charged(BACK), refunded(BACK)]


def keep_pieces(books: Books, _: list[SentMessage]) -> None:
    books.stock[SKU] = StockLevel(received=UNITS, on_hand=UNITS - 1, reserved=1)


@pytest.mark.parametrize(
    "spoil",
    [
        case(lambda books, _: books.settlements.pop(), id="not settled"),
        case(lambda books, _: books.settlements.append(books.settlements[0]), id="settled twice"),
        case(lambda books, _: books.ledger.pop(), id="money kept"),
        case(refund_twice, id="refunded twice"),
        case(keep_pieces, id="pieces kept"),
        case(lambda _, messages: messages.pop(0), id="no refusal"),
        case(
            lambda _, messages: messages.append(sent(CancellationRefused, BACK.order_id)),
            id="a refusal too many",
        ),
        case(lambda _, messages: messages.append(sent(ReserveStock, LATE.order_id)), id="went both ways"),
    ],
)
def test_it_goes_red(spoil: Callable[[Books, list[SentMessage]], object]) -> None:
    books, messages = run()
    spoil(books, messages)
    assert not judged(books, messages).passed


def test_refusals_over_http_and_lost_orders_are_excused() -> None:
    books, messages = run()
    del messages[0]
    lost = {books.settlements.pop().order.order_id}
    over_http = {LATE.order_id}
    assert judged(books, messages, lost, over_http).passed
    assert not judged(books, messages, lost).passed
    assert not judged(books, messages, (), over_http).passed
    messages.append(sent(RequestCancellation, LATE.order_id))
    assert not judged(books, messages, lost, over_http).passed


def test_they_are_left_out_of_the_other_findings() -> None:
    evidence: Evidence = good()
    books, messages = run()
    assert evidence.books is not None
    mixed = replace(
        evidence,
        messages=[*evidence.messages, *messages],
        books=replace(
            evidence.books,
            settlements=[*evidence.books.settlements, *books.settlements],
            ledger=[*evidence.books.ledger, *books.ledger],
            received=evidence.books.received + books.received,
            shipped=evidence.books.shipped + books.shipped,
            stock=evidence.books.stock | books.stock,
        ),
    )
    without = without_called_off(mixed)
    assert without.books == evidence.books
    assert without.messages == evidence.messages
    names = [{each.name for each in findings(BOUGHT, those)} for those in (evidence, without)]
    assert names[0] == names[1]
