"""What holds of orders that are called off, and of orders that come both ways, whatever arrives when: they
end once, and all cents and pieces are where they belong. Handlers may be behind each other, answers of the
gateway may be lost.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shop import FakeGateway

from agents.cancellation import CANCELLED, CancellationRefused, RequestCancellation, StopShipment
from agents.choreographies import payment_first, stock_first
from agents.commands import CapturePayment, OrderSubmitted, ReserveStock, ScheduleShipment
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
    ShipmentScheduled,
    StockReceived,
    StockReserved,
)
from agents.order_saga import orchestrated
from agents.order_views import PAYMENT_FIRST, STOCK_FIRST, orders_as_sagas
from agents.payments.gateway import Charge, Refund
from streams.model.choreography import Choreography, choreography
from streams.saga import Course
from streams.testing.clock import ManualClock
from streams.testing.pump import World, run_choreography
from tables.orders import ORDERS
from tables.reservations import RESERVATION_TALLIES
from tables.sagas import ORDER_SAGAS
from tables.stock import STOCK, STOCK_RESERVATIONS
from tables.ways import ORDER_WAYS

SKUS = ("apple", "pear")
WIRINGS = {
    "stock_first": (choreography(*stock_first.routes.values(), *orchestrated), STOCK_FIRST),
    "payment_first": (choreography(*payment_first.routes.values(), *orchestrated), PAYMENT_FIRST),
}


class ForgetfulGateway(FakeGateway):
    """Does what it is asked, and now and then does not say so."""

    def __init__(self, chance: Random, lost: float) -> None:
        super().__init__()
        self._chance, self._lost = chance, lost

    async def charge(self, **asked: Any) -> Charge:
        return self._say(await super().charge(**asked))

    async def refund(self, **asked: Any) -> Refund:
        return self._say(await super().refund(**asked))

    async def void(self, **asked: Any) -> Charge:
        return self._say(await super().void(**asked))

    def _say(self, answer: Any) -> Any:
        if self._chance.random() < self._lost:
            raise ConnectionError("the answer was lost")
        return answer


purchases = st.builds(
    Order,
    order_id=st.just(""),
    customer=st.just("c-1"),
    lines=st.lists(
        st.builds(OrderLine, sku=st.sampled_from(SKUS), units=st.integers(1, 3)), min_size=1, max_size=3
    ).map(tuple),
    total_cents=st.sampled_from([0, 1250]),
    card=st.sampled_from([ACCEPTED, ACCEPTED, DECLINED]),
    country=st.sampled_from(["US", "US", "AQ"]),
)
#: How an order comes, how often, and how often it is called off.
comings = st.tuples(st.lists(st.sampled_from([OrderPlaced, OrderSubmitted]), max_size=3), st.integers(0, 2))


@dataclass
class Run:
    """A run to its end, with what went in: orders by id, those that came, and those that were called off."""

    world: World
    gateway: FakeGateway
    orders: dict[str, Order]
    came: set[str]
    called_off: set[str]

    def status(self, order_id: str) -> str:
        tracked = self.world.row(ORDERS, order_id)
        assert tracked is not None
        return tracked.status

    def confirmed(self) -> list[Order]:
        return [self.orders[order_id] for order_id in self.came if self.status(order_id) == "confirmed"]


@st.composite
def runs(draw: st.DrawFn, wiring: Choreography) -> Run:
    # Orders of two SKUs may be such as are too wide for one turn.
    with patch.object(model, "AT_ONCE", draw(st.sampled_from([1, 500]))):
        return played(draw, wiring)


def played(draw: st.DrawFn, wiring: Choreography) -> Run:
    chance = Random(draw(st.integers(0, 2**32)))
    orders, messages = {}, []
    came, called_off = set(), set()
    for number, (bought, (kinds, requests)) in enumerate(
        draw(st.lists(st.tuples(purchases, comings), min_size=1, max_size=4))
    ):
        order = msgspec.structs.replace(bought, order_id=f"o-{number}")
        orders[order.order_id] = order
        messages += [kind(order=order) for kind in kinds]
        messages += [RequestCancellation(order_id=order.order_id)] * requests
        came |= {order.order_id} if kinds else set()
        called_off |= {order.order_id} if requests else set()
    stock = [StockReceived(sku=sku, units=draw(st.integers(1, 9))) for sku in SKUS]
    gateway = ForgetfulGateway(chance, draw(st.sampled_from([0.0, 0.4])))
    world = asyncio.run(run_choreography(wiring, stock))
    asyncio.run(
        run_choreography(
            wiring,
            draw(st.permutations(messages)),
            resources={"gateway": gateway, "clock": ManualClock(), "consumed": frozenset(wiring.routes)},
            order=chance,
            repeat=draw(st.sampled_from([0.0, 0.3])),
            pace=draw(st.sampled_from([1.0, 0.2, 0.05])),
            behind=draw(st.sampled_from([0.0, 0.4])),
            retried=(ConnectionError,),
            timers="ignored",  # all answers come in time
            world=world,
        )
    )
    return Run(world, gateway, orders, came, called_off)


def of_every_run(test: Callable[..., None]) -> Callable[..., None]:
    """Both choreographies beside the saga, and for each whatever hypothesis thinks of."""
    anything = settings(deadline=None)(given(data=st.data())(test))
    return pytest.mark.parametrize(("wiring", "course"), WIRINGS.values(), ids=WIRINGS.keys())(anything)


@of_every_run
def test_every_order_that_came_ends_once_and_no_other_does(
    wiring: Choreography, course: Course, data: st.DataObject
) -> None:
    del course
    run = data.draw(runs(wiring))
    ends = [*run.world.sent(OrderConfirmed), *run.world.sent(OrderCancelled)]
    assert Counter(end.key for end in ends) == Counter(run.came)
    assert {end.key for end in run.world.sent(OrderConfirmed)} == {o.order_id for o in run.confirmed()}
    for end in run.world.sent(OrderCancelled):
        assert end.reason != CANCELLED or end.key in run.called_off
    for order_id in run.called_off - run.came:
        assert run.world.row(ORDERS, order_id) is None


@of_every_run
def test_all_cents_and_pieces_of_what_is_undone_are_back(
    wiring: Choreography, course: Course, data: st.DataObject
) -> None:
    del course
    run = data.draw(runs(wiring))
    value = sum(order.total_cents for order in run.confirmed())
    assert run.gateway.total("captured") - run.gateway.total("refunded") == value
    shipped = Counter[str]()
    for order in run.confirmed():
        shipped.update({each.sku: each.units for each in order.skus()})
    for (sku, _), level in run.world.all_rows(STOCK).items():
        assert (level.reserved, level.shipped) == (0, shipped[sku])
        assert level.received == level.on_hand + level.shipped
    assert all(hold.status != "reserved" for hold in run.world.all_rows(STOCK_RESERVATIONS).values())
    for tally in run.world.all_rows(RESERVATION_TALLIES).values():
        assert (tally.status in ("refused", "released", "shipped"), tally.awaited) == (True, 0)


@of_every_run
def test_only_who_calls_off_confirmed_orders_is_told(
    wiring: Choreography, course: Course, data: st.DataObject
) -> None:
    del course
    run = data.draw(runs(wiring))
    told = {each.key for each in run.world.sent(CancellationRefused)}
    assert told == {order.order_id for order in run.confirmed()} & run.called_off


@of_every_run
def test_nothing_of_the_second_way_takes_place(
    wiring: Choreography, course: Course, data: st.DataObject
) -> None:
    del course
    run = data.draw(runs(wiring))
    by_saga = {key for key, _ in run.world.all_rows(ORDER_SAGAS)}
    by_events = {
        message.key
        for kind in (StockReserved, PaymentCaptured, PaymentRefunded, ShipmentScheduled, StopShipment)
        for message in run.world.sent(kind)
    }
    assert not by_saga & by_events
    commanded = {
        message.key
        for kind in (ReserveStock, CapturePayment, ScheduleShipment)
        for message in run.world.sent(kind)
    }
    assert commanded <= by_saga
    for order_id in run.came:
        way = run.world.row(ORDER_WAYS, order_id)
        assert way is not None
        if order_id in by_saga:
            assert way.way == "submitted"
        if order_id in by_events:
            assert way.way == "placed"


@of_every_run
def test_every_order_has_ended_with_nothing_to_come(
    wiring: Choreography, course: Course, data: st.DataObject
) -> None:
    run = data.draw(runs(wiring))
    sagas = run.world.all_rows(ORDER_SAGAS)
    for row in sagas.values():
        assert row.ended
    for order_id in run.came - {key for key, _ in sagas}:
        tracked = run.world.row(ORDERS, order_id)
        view = orders_as_sagas(course).view(f"order:{order_id}", tracked)
        assert view is not None
        assert (view.ended, view.pending) == (True, ())
