"""What holds of every run of either choreography, in whatever order messages arrive and however often."""

import asyncio
from random import Random
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import strategies as st
from runs import FAR_AWAY, Run, of_every_run, orders_of, supply, units
from shop import FakeGateway

from agents.choreographies import payment_first, stock_first
from agents.gateway.cards import DECLINED
from agents.inventory import model
from agents.messages import Order, OrderPlaced, PaymentCaptured, PaymentRefunded, StockReceived
from streams.model.choreography import Choreography
from streams.testing.pump import run_choreography

pytestmark = pytest.mark.promise("wide-orders", "orders of two SKUs and more in several turns")

SKUS = ("apple", "pear", "plum")
purchases = orders_of(SKUS, cents=[0, 1, 1250, 99_999], most_lines=4)
deliveries = st.lists(
    st.builds(StockReceived, sku=st.sampled_from(SKUS), units=st.integers(1, 12)), max_size=6
)
in_either = of_every_run("wiring", {"stock_first": stock_first, "payment_first": payment_first})


@st.composite
def orders(draw: st.DrawFn) -> list[Order]:
    """Up to ten different orders, some of them placed twice."""
    drawn = draw(st.lists(purchases, min_size=1, max_size=10))
    numbered = [msgspec.structs.replace(one, order_id=f"o-{number}") for number, one in enumerate(drawn)]
    return numbered + draw(st.lists(st.sampled_from(numbered), max_size=3))


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
    by_id = {one.order_id: one for one in placed}
    return Run(world, gateway, by_id, set(by_id), [*early, *late])


@st.composite
def runs(draw: st.DrawFn, wiring: Choreography, early: list[StockReceived] | None = None) -> Run:
    order = Random(draw(st.integers(0, 2**32)))
    repeat = draw(st.sampled_from([0.0, 0.3]))
    there = draw(deliveries) if early is None else early
    # Orders of two SKUs or more may be such as are too wide for one turn.
    with patch.object(model, "AT_ONCE", draw(st.sampled_from([1, 500]))):
        return asyncio.run(play(wiring, draw(orders()), there, draw(deliveries), order, repeat))


@pytest.mark.promise("orders-settled")
@pytest.mark.promise("cents-and-pieces")
@in_either
def test_orders_are_settled_once_and_everything_adds_up(wiring: Choreography, data: st.DataObject) -> None:
    run = data.draw(runs(wiring))
    run.check_ends()
    run.check_cents()
    run.check_pieces()
    captured = sum(event.cents for event in run.world.sent(PaymentCaptured))
    refunded = sum(event.cents for event in run.world.sent(PaymentRefunded))
    assert captured - refunded == sum(order.total_cents for order in run.confirmed())
    for order_id in run.orders:
        types = [entry.type for entry in run.settled(order_id).history]
        assert types[0] == OrderPlaced.TOPIC
        assert len(types) == len(set(types)), "its history has each thing once"


@pytest.mark.promise("orders-settled")
@in_either
def test_an_order_ends_as_its_data_calls_for(wiring: Choreography, data: st.DataObject) -> None:
    early = data.draw(deliveries)
    run = data.draw(runs(wiring, early))
    there_at_once, demand, ever = supply(early), units([*run.orders.values()]), supply(run.delivered)
    for order in run.orders.values():
        refusals = set()
        if order.card == DECLINED and order.total_cents:
            refusals.add("card_declined")
        if order.country == FAR_AWAY:
            refusals.add("unsupported_destination")
        scarce = any(demand[line.sku] > there_at_once[line.sku] for line in order.lines)
        end = run.settled(order.order_id)
        if end.status == "confirmed":
            assert not refusals
        else:
            assert end.reason in refusals | ({"out_of_stock"} if scarce else set())
        if any(wanted > ever[sku] for sku, wanted in units([order]).items()):
            assert end.status == "cancelled"
            assert end.reason in {"out_of_stock", "card_declined"}
