"""The order saga on the lane: money that was taken comes back, though its answer was lost."""

from typing import Any, NamedTuple

import pytest
from lane_scenes import opened, post, stopped, until_so
from lane_scenes import rows_of as table
from lane_worlds import World

from agents.choreographies import stock_keeping
from agents.commands import OrderSubmitted
from agents.gateway.cards import ACCEPTED, DECLINED
from agents.gateway.testing import FakeGateway
from agents.messages import Order, OrderLine, StockReceived
from agents.order_saga import orchestrated
from agents.payments.gateway import Charge
from streams.model.choreography import choreography
from streams.model.policy.retry import RetryPolicy
from tables.orders import ORDERS
from tables.sagas import ORDER_SAGAS
from tables.stock import STOCK


class Workload(NamedTuple):
    wiring: Any
    resources: dict[str, Any]


def order(
    order_id: str, *lines: tuple[str, int], card: str = ACCEPTED, country: str = "US", cents: int = 100
) -> Order:
    wanted = tuple(OrderLine(sku=sku, units=units) for sku, units in lines)
    return Order(order_id=order_id, customer="c", lines=wanted, total_cents=cents, card=card, country=country)


ORDERED = [
    order("good", ("apple", 2), ("pear", 1)),
    order("greedy", ("apple", 1), ("pear", 99)),
    order("poor", ("apple", 1), card=DECLINED),
    order("far", ("pear", 2), country="AQ"),
    order("odd", ("apple", 1), card="4111 1111 1111 1111"),
    order("empty"),
]


async def begin(world: World, **lane_options: Any) -> FakeGateway:
    gateway = FakeGateway()
    await world.start(
        Workload(choreography(*orchestrated, *stock_keeping), {"gateway": gateway, "clock": world.clock}),
        **lane_options,
    )
    stock = (StockReceived(sku=sku, units=5) for sku in ("apple", "pear"))
    lane = await opened(world, *(post(world, message) for message in stock))
    await stopped(world, lane, StockReceived.TOPIC)
    await world.post(*(post(world, OrderSubmitted(order=one)) for one in ORDERED))
    return gateway


async def finish(world: World, lane: Any) -> None:
    """Wait until each order has ended and all that came of it is handled."""

    async def over() -> bool:
        sagas = await table(world, ORDER_SAGAS)
        return len(sagas) == len(ORDERED) - 1 and all(row.ended for row in sagas.values())

    await until_so(world, over)
    quiet = -1
    while quiet != lane.handled:
        quiet = lane.handled
        await world.settled(*world.app.routes)
    await lane.stop()


@pytest.mark.promise("saga-money-back")
@pytest.mark.landing
async def test_money_comes_back_when_a_payment_is_not_heard_of(world: World) -> None:
    gateway = await begin(world, retry=RetryPolicy(immediate=1, delays=()))
    charge = gateway.charge

    async def charge_and_say_nothing(**asked: Any) -> Charge:
        await charge(**asked)
        raise ConnectionError("the answer was lost")

    gateway.charge = charge_and_say_nothing  # type: ignore[assignment]
    await finish(world, await world.open())
    tracked = await table(world, ORDERS)
    assert tracked["good"].status == "cancelled"
    assert {
        name for name, done in gateway.done.items() if isinstance(done, Charge) and not done.declined
    } == {name.replace("refund", "capture") for name in gateway.done if name.startswith("refund")}
    assert "refund:good" in gateway.done
    stock = await table(world, STOCK)
    assert {sku: row.on_hand for sku, row in stock.items()} == {"apple": 5, "pear": 5}
