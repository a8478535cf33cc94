"""Runs of many orders to their end, whatever hypothesis thinks of, and what holds of each of them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shop import FakeGateway

from agents.gateway.cards import ACCEPTED, DECLINED
from agents.messages import Order, OrderCancelled, OrderConfirmed, OrderLine, StockReceived
from streams.testing.pump import World
from tables.orders import ORDERS, TrackedOrder
from tables.reservations import RESERVATION_TALLIES
from tables.stock import STOCK, STOCK_RESERVATIONS
from tests.effort import examples

FAR_AWAY = "AQ"


def orders_of(skus: Sequence[str], *, cents: Sequence[int], most_lines: int) -> st.SearchStrategy[Order]:
    """Orders without an id."""
    line = st.builds(OrderLine, sku=st.sampled_from(skus), units=st.integers(1, 4))
    return st.builds(
        Order,
        order_id=st.just(""),
        customer=st.just("c-1"),
        lines=st.lists(line, min_size=1, max_size=most_lines).map(tuple),
        total_cents=st.sampled_from(cents),
        card=st.sampled_from([ACCEPTED, ACCEPTED, DECLINED]),
        country=st.sampled_from(["US", "DE", FAR_AWAY]),
    )


@dataclass
class Run:
    """A run to its end, with what went in: orders by id, those that came, and what was delivered."""

    world: World
    gateway: FakeGateway
    orders: dict[str, Order]
    came: set[str]
    delivered: list[StockReceived]

    def settled(self, order_id: str) -> TrackedOrder:
        tracked = self.world.row(ORDERS, order_id)
        assert tracked is not None
        return tracked

    def confirmed(self) -> list[Order]:
        return [self.orders[name] for name in self.came if self.settled(name).status == "confirmed"]

    def check_ends(self) -> None:
        confirmed, cancelled = self.world.sent(OrderConfirmed), self.world.sent(OrderCancelled)
        assert Counter(end.key for end in (*confirmed, *cancelled)) == Counter(self.came)
        assert {end.key for end in confirmed} == {order.order_id for order in self.confirmed()}
        for end in cancelled:
            tracked = self.settled(end.key)
            assert (tracked.status, tracked.reason) == ("cancelled", end.reason)

    def check_cents(self) -> None:
        """What the gateway has kept is the value of the confirmed orders."""
        value = sum(order.total_cents for order in self.confirmed())
        assert self.gateway.total("captured") - self.gateway.total("refunded") == value

    def check_pieces(self) -> None:
        """What was delivered is on hand or in confirmed orders, and nothing is set aside any more."""
        received, shipped = supply(self.delivered), units(self.confirmed())
        for (sku, _), level in self.world.all_rows(STOCK).items():
            assert level.received == received[sku] == level.on_hand + level.shipped
            assert (level.reserved, level.shipped) == (0, shipped[sku])
        assert all(hold.status != "reserved" for hold in self.world.all_rows(STOCK_RESERVATIONS).values())
        for tally in self.world.all_rows(RESERVATION_TALLIES).values():
            assert (tally.status in ("refused", "released", "shipped"), tally.awaited) == (True, 0)


def units(orders: Sequence[Order]) -> Counter[str]:
    """Pieces of each SKU in these orders."""
    return total(line for order in orders for line in order.lines)


def supply(deliveries: Sequence[StockReceived]) -> Counter[str]:
    """Pieces of each SKU in these deliveries."""
    return total(deliveries)


def total(those: Any) -> Counter[str]:
    pieces = Counter[str]()
    for each in those:
        pieces[each.sku] += each.units
    return pieces


def of_every_run(name: str, wirings: Mapping[str, Any]) -> Callable[[Callable[..., None]], Any]:
    def decorate(test: Callable[..., None]) -> Any:
        anything = settings(max_examples=examples(200), deadline=None)(given(data=st.data())(test))
        return pytest.mark.parametrize(name, wirings.values(), ids=wirings.keys())(anything)

    return decorate
