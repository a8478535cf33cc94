"""What holds of orders that are called off, and of orders that come both ways, whatever arrives when: they
end once, and all cents and pieces are where they belong. Handlers may be behind each other, answers of the
gateway may be lost.
"""

import asyncio
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import strategies as st
from runs import Run, of_every_run, orders_of
from shop import FakeGateway

from agents.cancellation import CANCELLED, CancellationRefused, RequestCancellation, StopShipment
from agents.choreographies import payment_first, stock_first
from agents.commands import CapturePayment, OrderSubmitted, ReserveStock, ScheduleShipment
from agents.inventory import model
from agents.messages import (
    OrderCancelled,
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
from streams.testing.pump import run_choreography
from tables.orders import ORDERS
from tables.sagas import ORDER_SAGAS
from tables.ways import ORDER_WAYS

pytestmark = pytest.mark.promise("cancelled-orders", "also when answers of the gateway are lost")

SKUS = ("apple", "pear")


class Beside(NamedTuple):
    """A choreography beside the saga, and what its orders go through."""

    wiring: Choreography
    course: Course


beside_the_saga = of_every_run(
    "beside",
    {
        "stock_first": Beside(choreography(*stock_first.routes.values(), *orchestrated), STOCK_FIRST),
        "payment_first": Beside(choreography(*payment_first.routes.values(), *orchestrated), PAYMENT_FIRST),
    },
)
purchases = orders_of(SKUS, cents=[0, 1250], most_lines=3)
#: How an order comes, how often, and how often it is called off.
comings = st.tuples(st.lists(st.sampled_from([OrderPlaced, OrderSubmitted]), max_size=3), st.integers(0, 2))


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


@st.composite
def runs(draw: st.DrawFn, wiring: Choreography) -> tuple[Run, set[str]]:
    # Orders of two SKUs may be such as are too wide for one turn.
    with patch.object(model, "AT_ONCE", draw(st.sampled_from([1, 500]))):
        return played(draw, wiring)


def played(draw: st.DrawFn, wiring: Choreography) -> tuple[Run, set[str]]:
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
    return Run(world, gateway, orders, came, stock), called_off


@pytest.mark.promise("one-way")
@beside_the_saga
def test_every_order_that_came_ends_once_and_no_other_does(beside: Beside, data: st.DataObject) -> None:
    """With all cents and pieces of what is undone back, and nothing to come."""
    run, called_off = data.draw(runs(beside.wiring))
    run.check_ends()
    run.check_cents()
    run.check_pieces()
    for end in run.world.sent(OrderCancelled):
        assert end.reason != CANCELLED or end.key in called_off
    for order_id in called_off - run.came:
        assert run.world.row(ORDERS, order_id) is None
    refused = {each.key for each in run.world.sent(CancellationRefused)}
    assert refused == {order.order_id for order in run.confirmed()} & called_off
    sagas = run.world.all_rows(ORDER_SAGAS)
    assert all(row.ended for row in sagas.values())
    for order_id in run.came - {key for key, _ in sagas}:
        tracked = run.world.row(ORDERS, order_id)
        view = orders_as_sagas(beside.course).view(f"order:{order_id}", tracked)
        assert view is not None
        assert (view.ended, view.pending) == (True, ())


@pytest.mark.promise("one-way", "handlers behind each other, messages repeated")
@beside_the_saga
def test_nothing_of_the_second_way_takes_place(beside: Beside, data: st.DataObject) -> None:
    run, _ = data.draw(runs(beside.wiring))
    by_saga = {key for key, _ in run.world.all_rows(ORDER_SAGAS)}
    events = (StockReserved, PaymentCaptured, PaymentRefunded, ShipmentScheduled, StopShipment)
    by_events = {message.key for kind in events for message in run.world.sent(kind)}
    assert not by_saga & by_events
    commands = (ReserveStock, CapturePayment, ScheduleShipment)
    assert {message.key for kind in commands for message in run.world.sent(kind)} <= by_saga
    for order_id in run.came:
        way = run.world.row(ORDER_WAYS, order_id)
        assert way is not None
        if order_id in by_saga:
            assert way.way == "submitted"
        if order_id in by_events:
            assert way.way == "placed"
