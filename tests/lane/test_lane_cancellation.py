"""Orders that are called off and orders that come both ways, on the lane: each ends once, with nothing left
taken, whatever comes when and wherever the lane is killed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_checker import check_positions, check_store
from lane_scenes import until_so
from lane_worlds import FakeWorld, Post, World, closing
from test_lane_order_saga import POINTS, Workload, order, table

from agents.cancellation import CANCELLED, CancellationRefused, RequestCancellation
from agents.choreographies import payment_first, stock_first
from agents.commands import OrderSubmitted
from agents.gateway.cards import DECLINED
from agents.gateway.testing import FakeGateway
from agents.messages import OrderCancelled, OrderConfirmed, OrderPlaced, StockReceived
from agents.order_saga import orchestrated
from agents.payments.gateway import Charge, Refund
from streams.model.choreography import Choreography, choreography
from streams.model.envelope import new_headers
from streams.model.message import Message
from streams.testing.loop import SimulatedLoop
from tables.orders import ORDERS
from tables.reservations import RESERVATION_TALLIES
from tables.sagas import ORDER_SAGAS
from tables.stock import STOCK
from tests.effort import examples

WIRINGS = {
    "stock_first": choreography(*stock_first.routes.values(), *orchestrated),
    "payment_first": choreography(*payment_first.routes.values(), *orchestrated),
}
WIRED = pytest.mark.parametrize("wiring", WIRINGS.values(), ids=WIRINGS.keys())
ORDERED = {
    "good": order("good", ("apple", 2), ("pear", 1)),
    "fine": order("fine", ("pear", 1)),
    "greedy": order("greedy", ("apple", 1), ("pear", 99)),
    "poor": order("poor", ("apple", 1), card=DECLINED),
    "far": order("far", ("pear", 2), country="AQ"),
}
#: What the data of each calls for, if nobody calls it off.
ENDS = {
    **dict.fromkeys(("good", "fine"), ""),
    "greedy": "out_of_stock",
    "poor": "card_declined",
    "far": "unsupported_destination",
}


class Sent(NamedTuple):
    """What a client sends, under which id, and how many seconds later than what it has sent before."""

    kind: type[Any]
    order_id: str
    name: str
    pause: float = 0.0

    def post(self, world: World) -> Post:
        cancels = self.kind is RequestCancellation
        message = self.kind(order_id=self.order_id) if cancels else self.kind(order=ORDERED[self.order_id])
        return post(world, message, f"{self.name}-{self.order_id}")


def post(world: World, message: Message, name: str) -> Post:
    body = world.app.message_codecs[message.TOPIC].encode(message)
    headers = new_headers(message.TOPIC, message.key, source="outside", time=1e9, message_id=name)
    return world.raw(message.TOPIC, message.key, body, headers)


async def begin(world: World, wiring: Choreography) -> FakeGateway:
    gateway = FakeGateway()
    await world.start(Workload(wiring, {"gateway": gateway, "clock": world.clock}))
    stock = [StockReceived(sku=sku, units=9) for sku in ("apple", "pear")]
    await world.post(*(post(world, message, message.sku) for message in stock))
    return gateway


async def finish(world: World, came: set[str]) -> None:
    """Wait until each order that came has ended and all that came of it is handled."""

    async def ended() -> bool:
        rows: Any = await table(world, ORDERS)
        sagas: Any = await table(world, ORDER_SAGAS)
        settled = {key for key, row in rows.items() if row.settled}
        return settled == came and all(row.ended for row in sagas.values())

    await until_so(world, ended)
    running, quiet = world.running[-1], -1
    while quiet != running.handled:
        quiet = running.handled
        await world.settled(*world.app.routes)
    await running.stop()


async def check(world: World, gateway: FakeGateway, sent: list[Sent]) -> dict[str, str]:
    """Everything adds up; returns why each order was cancelled, empty when it was not."""
    came = {each.order_id for each in sent if each.kind is not RequestCancellation}
    called_off = {each.order_id for each in sent if each.kind is RequestCancellation}
    tracked: Any = await table(world, ORDERS)
    reasons = {key: row.reason for key, row in tracked.items()}
    assert reasons.keys() == came
    for key, reason in reasons.items():
        assert reason == ENDS[key] or (reason == CANCELLED and key in called_off), (key, reason)
    ends = [*await world.records(OrderConfirmed.TOPIC), *await world.records(OrderCancelled.TOPIC)]
    assert Counter((end.key or b"").decode() for end in ends) == Counter(came)
    confirmed = {key for key, reason in reasons.items() if not reason}
    told = {(each.key or b"").decode() for each in await world.records(CancellationRefused.TOPIC)}
    assert told == confirmed & called_off

    net = Counter[str]()
    for each in gateway.done.values():
        if isinstance(each, Charge) and not each.declined:
            net[each.operation.partition(":")[2]] += each.cents
        elif isinstance(each, Refund):
            net[each.charge_operation.partition(":")[2]] -= each.cents
    assert {key for key, cents in net.items() if cents} == confirmed
    left = Counter[str]()
    for key in confirmed:
        left.update({each.sku: each.units for each in ORDERED[key].skus()})
    levels: Any = await table(world, STOCK)
    for sku, row in levels.items():
        assert (row.received, row.on_hand, row.reserved, row.shipped) == (9, 9 - left[sku], 0, left[sku])
    tallies: Any = await table(world, RESERVATION_TALLIES)
    assert {row.status for row in tallies.values()} <= {"refused", "released", "shipped"}
    await check_positions(world, world.app.routes)
    return reasons


#: A few orders, each by one way, by both or by none, sent twice or under two ids, called off or not.
sendings = st.lists(
    st.builds(
        Sent,
        kind=st.sampled_from([OrderPlaced, OrderSubmitted, RequestCancellation]),
        order_id=st.sampled_from(sorted(ORDERED)),
        name=st.sampled_from(["first", "first", "second"]),
        pause=st.sampled_from([0.0, 0.0, 0.05, 0.3]),
    ),
    min_size=1,
    max_size=10,
)
kills = st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 12)), max_size=3, unique=True)


@WIRED
@settings(max_examples=examples(25), deadline=None)
@given(sent=sendings, kills=kills)
def test_called_off_orders_end_once_whatever_comes_and_is_killed(
    wiring: Choreography, sent: list[Sent], kills: list[tuple[str, int]]
) -> None:
    async def play() -> None:
        async with closing(FakeWorld()) as world:
            gateway = await begin(world, wiring)
            for point, nth in kills:
                world.faults.kill_at(point, nth=world.faults.reached[point] + nth)
            sending = world.spawn(send(world))
            while True:
                running = world.lane()
                running.may_fail = True
                if not await killed(world, running, sending):
                    break
            assert len(world.running) - 1 == len(kills) - len(world.faults.pending)
            world.faults.call_off()  # positions that follow by themselves would still reach one
            await finish(world, {each.order_id for each in sent if each.kind is not RequestCancellation})
            await check(world, gateway, sent)
            await check_store(world)

    async def send(world: FakeWorld) -> None:
        for each in sent:
            if each.pause:
                await world.clock.sleep(each.pause)
            await world.post(each.post(world))

    async def killed(world: FakeWorld, running: Any, sending: Any) -> bool:
        """Whether it is; else it has been idle for a while."""
        until = world.clock.now() + 5.0
        await world.until(lambda: running.task.done() or (sending.done() and world.clock.now() > until))
        return bool(running.task.done())

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(play())


@WIRED
async def test_an_order_called_off_before_it_comes_never_lives(world: World, wiring: Choreography) -> None:
    gateway = await begin(world, wiring)
    off = [Sent(RequestCancellation, key, name) for name in ("first", "second") for key in ORDERED]
    await world.open()
    await world.post(*(each.post(world) for each in off))
    await world.settled(RequestCancellation.TOPIC)
    came = [
        *(Sent(OrderPlaced, key, "third") for key in ("good", "poor")),
        *(Sent(OrderSubmitted, key, "third") for key in ("fine", "far", "good")),
    ]
    await world.post(*(each.post(world) for each in came))
    await finish(world, {"good", "poor", "fine", "far"})
    reasons = await check(world, gateway, off + came)
    assert set(reasons.values()) == {CANCELLED}
    assert gateway.done == {}
    assert await table(world, ORDER_SAGAS) == {}
