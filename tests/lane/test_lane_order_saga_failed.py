"""An order's saga that fails for good: its page says what to do, and one command settles order and stock."""

from typing import Any

import pytest
from lane_commands import Pages, command_line
from lane_scenes import opened, post, rows_of, stopped, until_so
from lane_worlds import FakeWorld
from test_lane_order_saga import Workload, order
from test_lane_saga_commands import WHY

from agents.choreographies import stock_keeping
from agents.commands import OrderSubmitted, ReleaseStock
from agents.gateway.cards import DECLINED
from agents.gateway.testing import FakeGateway
from agents.messages import StockReceived
from agents.order_saga import orchestrated
from streams.cli import saga as commands
from streams.engine.staging.outcomes import Outcomes
from streams.model.choreography import choreography
from streams.model.claim import DATAREF
from streams.ports import Outgoing
from streams.saga.definition import Backoff
from tables.orders import ORDERS
from tables.sagas import ORDER_SAGAS
from tables.stock import STOCK

UNITS = 4


class Spoilt:
    """Commands to release stock leave with a reference that is none, until this is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mended = False
        self.times = 0
        encode = Outcomes._outgoing

        def outgoing(outcomes: Any, handler: Any, message: Any, *rest: Any) -> Any:
            bound, key, made, uploads = encode(outcomes, handler, message, *rest)
            if isinstance(message, ReleaseStock) and not self.mended:
                self.times += 1
                made = Outgoing(made.key, b"", [*made.headers, (DATAREF, b"no reference")])
            return bound, key, made, uploads

        monkeypatch.setattr(Outcomes, "_outgoing", outgoing)


async def test_one_command_settles_an_order_whose_release_is_unreadable(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PAUSE", 0.01)
    wait = Backoff.wait
    monkeypatch.setattr(Backoff, "wait", lambda backoff, tries: wait(backoff, tries) if tries < 2 else None)
    spoilt = Spoilt(monkeypatch)
    wiring = choreography(*orchestrated, *stock_keeping)
    await fake.start(Workload(wiring, {"gateway": FakeGateway(), "clock": fake.clock}), saga_limit=7200.0)
    stock = await opened(fake, post(fake, StockReceived(sku="apple", units=5)))
    await stopped(fake, stock, StockReceived.TOPIC)
    await fake.post(post(fake, OrderSubmitted(order=order("poor", ("apple", UNITS), card=DECLINED))))
    lane = await fake.open()

    await fake.settled(OrderSubmitted.TOPIC)
    for _ in range(20):
        await fake.clock.advance(60)
        saga = (await rows_of(fake, ORDER_SAGAS)).get("poor")
        if saga is not None and saga.status == "failed":
            break
    assert (await rows_of(fake, ORDER_SAGAS))["poor"].status == "failed"
    assert spoilt.times > 1  # it was tried again by itself
    assert (await rows_of(fake, STOCK))["apple"].reserved == UNITS
    assert not (await rows_of(fake, ORDERS))["poor"].reason

    async with command_line(fake, Pages(fake, lane.lane), "saga") as operator:
        shown = (await operator.run("show", "order:poor")).stdout
        assert "Mend why reserve_inventory failed" in shown
        assert f"look for a dead letter of {ReleaseStock.TOPIC}" in shown
        assert "`steadfaust saga retry order:poor reserve_inventory --why ...`" in shown
        spoilt.mended = True
        retried = await operator.run("retry", "order:poor", "reserve_inventory", *WHY)
        assert retried.exit_code == 0, retried.stdout

    async def settled() -> bool:
        return (await rows_of(fake, ORDERS))["poor"].status == "cancelled"

    await until_so(fake, settled)
    assert (await rows_of(fake, ORDERS))["poor"].reason == "card_declined"
    apple = (await rows_of(fake, STOCK))["apple"]
    assert (apple.on_hand, apple.reserved) == (5, 0)
    assert (await rows_of(fake, ORDER_SAGAS))["poor"].status == "compensated"
    await stopped(fake, lane, *fake.app.routes)
