"""The participants that workflow engines share, on PostgreSQL: repeated, they do nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from benchmarks.peers.shop import CONFIRMED
from benchmarks.workflows.shop import as_json, look, open_shop
from demo.purchases import ExpectedOutcome, order, outcome, purchases, units_by_sku
from streams.postgres import Connection
from streams.postgres.database import connect

BOUGHT = purchases(200)
AT_ONCE = 10


async def test_orders_that_come_twice_at_once_are_handled_once(postgres_url: str) -> None:
    connection, *others = [await connect(postgres_url) for _ in range(1 + AT_ONCE)]
    await open_shop(connection)

    async def conduct(own: Connection, plain: dict[str, Any]) -> None:
        name = plain["order_id"]
        if not await own.fetchval("SELECT reserve($1, $2, $3)", name, plain["skus"], plain["units"]):
            how = "out_of_stock"
        elif not await own.fetchval("SELECT schedule($1, $2)", name, plain["country"]):
            how = "unsupported_destination"
            await own.execute("SELECT let_go($1, 'released')", name)
        else:
            how = CONFIRMED
        await own.execute("SELECT settle($1, $2)", name, how)

    given = json.loads(as_json(BOUGHT))
    for start in range(0, len(given), AT_ONCE):
        some = given[start : start + AT_ONCE]
        await asyncio.gather(*(conduct(*each) for each in zip(others, some, strict=False)))
        for plain in some:
            await conduct(connection, plain)
    found = await look(connection, BOUGHT)
    for each in (connection, *others):
        await each.close()
    ends = {each.order.order_id: each.outcome for each in found.settlements}
    declined = ExpectedOutcome.DECLINED.value  # without a gateway
    assert ends == {
        each.order_id: CONFIRMED if outcome(each) == declined else outcome(each).value for each in BOUGHT
    }
    gone = units_by_sku(order(each) for each in BOUGHT if ends[each.order_id] == CONFIRMED)
    assert +found.shipped == gone
    assert all(level.received == level.on_hand + level.shipped for level in found.stock.values())
    assert not any(level.reserved for level in found.stock.values())
