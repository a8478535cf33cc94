"""Orders of ten thousand SKUs on real workers, beside ordinary ones."""

from __future__ import annotations

from collections import Counter

import pytest

from agents.commands import OrderSubmitted
from agents.gateway import cards
from agents.messages import Order, OrderLine, OrderPlaced, StockReceived
from tables.values import MAX_LINES
from tests.scenarios.world import World
from tests.waiting import eventually

WIDE = [f"wide-{number:05}" for number in range(MAX_LINES)]
MISSING = "wide-missing"


def wide(order_id: str, skus: list[str]) -> Order:
    lines = tuple(OrderLine(sku=sku, units=1) for sku in skus)
    return Order(
        order_id=order_id, customer="c", lines=lines, total_cents=100, card=cards.ACCEPTED, country="US"
    )


@pytest.mark.timeout(400)
@pytest.mark.verify("orders of many SKUs: lane/test_lane_wide_orders.py stands for it, on Kafka too")
def test_orders_of_ten_thousand_skus_hold_up_no_others(world: World) -> None:
    """One of 2,000 stopped its lane and two others of its worker for minutes."""
    workers = [world.start_worker(), world.start_worker()]
    world.until_shared(workers)
    world.received.update(Counter(dict.fromkeys(WIDE, 9)))
    world.send([(StockReceived(sku=sku, units=9), f"receipt-{sku}") for sku in WIDE])
    known = len(world.received)
    eventually(lambda: len(world.stock()) == known, "the stock has arrived")
    for way, kind in (("placed", OrderPlaced), ("submitted", OrderSubmitted)):
        orders = {
            "confirmed": wide(f"{way}-good", WIDE),
            "out_of_stock": wide(f"{way}-short", [*WIDE[1:], MISSING]),
        }
        world.expected.update({one.order_id: (outcome, 100) for outcome, one in orders.items()})
        world.send([(kind(order=one), f"message-{one.order_id}") for one in orders.values()])
    world.until_settled(world.place("beside", 100))
    world.until_settled(list(world.expected))
    world.check()
    for worker in workers:
        assert not worker.events("lane_reopens")
        assert worker.stop() == 0
