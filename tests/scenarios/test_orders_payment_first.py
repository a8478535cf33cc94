"""Orders through two workers, payment first: the same orders come to the same ends."""

from __future__ import annotations

import pytest

from tests.scenarios.world import World

CHOREOGRAPHY = "payment-first"


@pytest.mark.verify("no fault: test_orders.py stands for it, and the properties of both choreographies")
def test_every_order_is_settled_once_and_rightly(world: World) -> None:
    world.until_shared([world.start_worker(), world.start_worker()])
    ids = world.place("first", 200, copies=2)
    world.until_settled(ids)
    world.check()
    assert world.ledger()["refunded"] > 0, "orders out of stock were paid before they were cancelled"
