"""What holds of every run of either choreography, in whatever order messages arrive and however often."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shop import FakeGateway

from agents.choreographies import payment_first, stock_first
from agents.gateway.cards import ACCEPTED, DECLINED
from agents.inventory import model
from agents.messages import (
    Order,
    OrderCancelled,
    OrderConfirmed,
    OrderLine,
    OrderPlaced,
    PaymentCaptured,
    PaymentRefunded,
    StockReceived,
)
from streams.model.choreography import Choreography
from streams.testing.pump import World, run_choreography
from tables.orders import ORDERS, TrackedOrder
from tables.reservations import RESERVATION_TALLIES
from tables.stock import STOCK, STOCK_RESERVATIONS

SKUS = ("apple", "pear", "plum")
FAR_AWAY = "AQ"

lines = st.lists(
    st.builds(OrderLine, sku=st.sampled_from(SKUS), units=st.integers(1, 4)), min_size=1, max_size=4
).map(tuple)
purchases = st.builds(
    Order,
    order_id=st.just(""),
    customer=st.just("c-1"),
    lines=lines,
    total_cents=st.sampled_from([0, 1, 1250, 99_999]),
    card=st.sampled_from([ACCEPTED, ACCEPTED, DECLINED]),
    country=st.sampled_from(["US", "DE", FAR_AWAY]),
)
deliveries = st.lists(
    st.builds(StockReceived, sku=st.sampled_from(SKUS), units=st.integers(1, 12)), max_size=6
)


@st.composite
def orders(draw: st.DrawFn) -> list[Order]:
    """Up to ten different orders, some of them placed twice."""
    drawn = draw(st.lists(purchases, min_size=1, max_size=10))
    numbered = [msgspec.structs.replace(one, order_id=f"o-{number}") for number, one in enumerate(drawn)]
    return numbered + draw(st.lists(st.sampled_from(numbered), max_size=3))


@dataclass
class Run:
    """A run to its end, with what went in."""

    world: World
    gateway: FakeGateway
    orders: dict[str, Order]
    early: list[StockReceived]
    late: list[StockReceived]

    def settled(self, order: Order) -> TrackedOrder:
        tracked = self.world.row(ORDERS, order.order_id)
        assert tracked is not None
        return tracked

    def confirmed(self) -> list[Order]:
        return [order for order in self.orders.values() if self.settled(order).status == "confirmed"]


async def play(
    wiring: Choreography,
    placed: list[Order],
    early: list[StockReceived],
    late: list[StockReceived],
    order: Random,
    repeat: float,
) -> Run:
    """Some stock is there before the first order, more of it comes in among them."""
    gateway = FakeGateway()
    world = await run_choreography(wiring, early, order=order, repeat=repeat)
    messages = [*(OrderPlaced(order=one) for one in placed), *late]
    resources = {"gateway": gateway}
    await run_choreography(wiring, messages, resources=resources, order=order, repeat=repeat, world=world)
    return Run(world, gateway, {one.order_id: one for one in placed}, early, late)


@st.composite
def runs(draw: st.DrawFn, wiring: Choreography) -> Run:
    order = Random(draw(st.integers(0, 2**32)))
    repeat = draw(st.sampled_from([0.0, 0.3]))
    # Orders of two SKUs or more may be such as are too wide for one turn.
    with patch.object(model, "AT_ONCE", draw(st.sampled_from([1, 500]))):
        return asyncio.run(play(wiring, draw(orders()), draw(deliveries), draw(deliveries), order, repeat))


def units(orders: Iterable[Order]) -> Counter[str]:
    """Pieces of each SKU in these orders."""
    total: Counter[str] = Counter()
    for order in orders:
        for line in order.lines:
            total[line.sku] += line.units
    return total


def supply(*deliveries: StockReceived) -> Counter[str]:
    """Pieces of each SKU in these deliveries."""
    total: Counter[str] = Counter()
    for delivery in deliveries:
        total[delivery.sku] += delivery.units
    return total


def of_every_run(test: Callable[..., None]) -> Callable[..., None]:
    """Both choreographies, and for each whatever hypothesis thinks of."""
    anything = settings(deadline=None)(given(data=st.data())(test))
    wirings = {"stock_first": stock_first, "payment_first": payment_first}
    return pytest.mark.parametrize("wiring", wirings.values(), ids=wirings.keys())(anything)


@of_every_run
def test_every_order_is_settled_exactly_once(wiring: Choreography, data: st.DataObject) -> None:
    run = data.draw(runs(wiring))
    ends = [*run.world.sent(OrderConfirmed), *run.world.sent(OrderCancelled)]
    assert Counter(end.key for end in ends) == Counter(run.orders.keys())
    assert {end.key for end in run.world.sent(OrderConfirmed)} == {one.order_id for one in run.confirmed()}
    for cancelled in run.world.sent(OrderCancelled):
        assert run.settled(cancelled.order).status == "cancelled"
        assert run.settled(cancelled.order).reason == cancelled.reason


@of_every_run
def test_the_money_kept_is_the_value_of_the_confirmed_orders(
    wiring: Choreography, data: st.DataObject
) -> None:
    run = data.draw(runs(wiring))
    value = sum(order.total_cents for order in run.confirmed())
    assert run.gateway.total("captured") - run.gateway.total("refunded") == value
    captured = sum(event.cents for event in run.world.sent(PaymentCaptured))
    refunded = sum(event.cents for event in run.world.sent(PaymentRefunded))
    assert captured - refunded == value


@of_every_run
def test_the_stock_received_is_on_hand_or_in_confirmed_orders(
    wiring: Choreography, data: st.DataObject
) -> None:
    run = data.draw(runs(wiring))
    received = supply(*run.early, *run.late)
    shipped = units(run.confirmed())
    for (sku, _), level in run.world.all_rows(STOCK).items():
        assert level.received == received[sku] == level.on_hand + level.shipped
        assert level.reserved == 0
        assert level.shipped == shipped[sku]
    for hold in run.world.all_rows(STOCK_RESERVATIONS).values():
        assert hold.status != "reserved"
    for tally in run.world.all_rows(RESERVATION_TALLIES).values():
        assert tally.status in ("refused", "released", "shipped")
        assert tally.awaited == 0


@of_every_run
def test_an_order_ends_as_its_data_calls_for(wiring: Choreography, data: st.DataObject) -> None:
    run = data.draw(runs(wiring))
    there_at_once = supply(*run.early)
    demand = units(run.orders.values())
    for order in run.orders.values():
        refusals = set()
        if order.card == DECLINED and order.total_cents:
            refusals.add("card_declined")
        if order.country == FAR_AWAY:
            refusals.add("unsupported_destination")
        scarce = any(demand[line.sku] > there_at_once[line.sku] for line in order.lines)
        end = run.settled(order)
        if end.status == "confirmed":
            assert not refusals
        else:
            assert end.reason in refusals | ({"out_of_stock"} if scarce else set())


@of_every_run
def test_an_order_beyond_all_stock_is_refused(wiring: Choreography, data: st.DataObject) -> None:
    run = data.draw(runs(wiring))
    ever = supply(*run.early, *run.late)
    for order in run.orders.values():
        if any(wanted > ever[sku] for sku, wanted in units([order]).items()):
            end = run.settled(order)
            assert end.status == "cancelled"
            assert end.reason in {"out_of_stock", "card_declined"}


@of_every_run
def test_the_history_tells_each_thing_once(wiring: Choreography, data: st.DataObject) -> None:
    run = data.draw(runs(wiring))
    for order in run.orders.values():
        types = [entry.type for entry in run.settled(order).history]
        assert types[0] == OrderPlaced.TOPIC
        assert len(types) == len(set(types))
