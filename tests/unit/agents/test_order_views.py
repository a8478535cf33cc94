"""Choreographed orders, seen as sagas."""

from random import Random
from typing import Any

import pytest
from shop import FakeGateway, order

from agents.choreographies import payment_first, stock_first
from agents.gateway.cards import DECLINED
from agents.messages import Order, OrderPlaced, PaymentFailed, StockReceived, StockReleased, StockReserved
from agents.order_views import PAYMENT_FIRST, STOCK_FIRST, orders_as_sagas
from agents.orders.model import entry
from streams.model.choreography import Choreography
from streams.saga.views import Course, SagaView
from streams.testing.pump import START, run_choreography
from tables.orders import ORDERS, HistoryEntry, TrackedOrder

both = pytest.mark.parametrize(
    ("wiring", "course"),
    [(stock_first, STOCK_FIRST), (payment_first, PAYMENT_FIRST)],
    ids=["stock_first", "payment_first"],
)
BARE = Order(order_id="bare", customer="c", lines=(), total_cents=1, card=DECLINED, country="US")
ORDERED = [
    order("good", ("apple", 2)),
    order("greedy", ("apple", 1), ("pear", 99)),
    order("poor", ("apple", 1), card=DECLINED),
    order("far", ("pear", 1), country="AQ"),
    order("free", ("apple", 1), total_cents=0),
    BARE,
]
REASONS = {
    "good": "", "free": "", "greedy": "out_of_stock", "poor": "card_declined",
    "far": "unsupported_destination", "bare": "no_lines",
}  # fmt: skip


def view_of(course: Course, tracked: TrackedOrder) -> SagaView:
    found = orders_as_sagas(course).view(f"order:{tracked.order.order_id}", tracked)
    assert found is not None
    return found


@pytest.mark.promise("saga-list")
@both
@pytest.mark.parametrize("seed", range(5))
async def test_every_finished_order_has_nothing_to_come(
    wiring: Choreography, course: Course, seed: int
) -> None:
    stock = [StockReceived(sku=sku, units=9) for sku in ("apple", "pear")]
    placed = [OrderPlaced(order=one) for one in ORDERED]
    world = await run_choreography(wiring, stock, resources={"gateway": FakeGateway()})
    resources = {"gateway": FakeGateway()}
    await run_choreography(wiring, placed, resources=resources, order=Random(seed), world=world)
    rows = world.all_rows(ORDERS).values()
    views = [view_of(course, row) for row in rows]
    assert {view.saga_id.removeprefix("order:"): view.reason for view in views} == REASONS
    for view in views:
        assert view.status == ("compensated" if view.reason else "completed")
        assert view.pending == ()
        assert view.created_at >= START


def at(second: int, event: Any) -> HistoryEntry:
    return entry(event, f"2026-01-01T12:00:{second:02}.000Z")


def test_an_order_under_way_says_what_is_still_to_come() -> None:
    tracked = TrackedOrder(order=ORDERED[0]).noted(at(0, OrderPlaced(order=ORDERED[0])))
    view = view_of(STOCK_FIRST, tracked.noted(at(2, StockReserved(order=ORDERED[0]))))
    assert view.status == "started"
    assert view.pending == ("payments.payment.captured.v1", "shipping.shipment.scheduled.v1")
    assert view.changed_at - view.created_at == 2.0


def test_a_cancelled_order_ends_when_its_stock_is_back() -> None:
    failed = PaymentFailed(order=ORDERED[2], reason="card_declined")
    tracked = TrackedOrder(order=ORDERED[2]).noted(at(0, failed)).cancelled("card_declined")
    assert view_of(STOCK_FIRST, tracked).pending == (StockReleased.TOPIC,)
    assert view_of(STOCK_FIRST, tracked).status == "compensating"
    back = tracked.noted(at(1, StockReleased(order=ORDERED[2])))
    assert view_of(STOCK_FIRST, back).status == "compensated"
    assert view_of(PAYMENT_FIRST, tracked).status == "compensated", "nothing had been set aside"


def test_an_unreadable_time_is_that_of_the_last_event() -> None:
    tracked = TrackedOrder(order=ORDERED[0]).noted(at(5, OrderPlaced(order=ORDERED[0])))
    odd = tracked.noted(entry(StockReserved(order=ORDERED[0]), "yesterday"))
    view = view_of(STOCK_FIRST, odd)
    assert view.changed_at == view.created_at > START
