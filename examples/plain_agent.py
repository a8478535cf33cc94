"""A plain agent of Faust beside a lane: the agent counts page views, the handler keeps orders exactly once.

By hand:

    export STEADFAUST_APP_ID=shop      # in both terminals
    steadfaust up
    faust -A examples.plain_agent worker      # in a second terminal
    python -m examples.plain_agent            # three page views and an order

The agent has Faust's guarantees alone: a view may be counted twice after a crash (docs/faust.md).
"""

from __future__ import annotations

import asyncio
from typing import Any

from streams import Message, Outcome, Row, Service, Table, Worker, choreography, on, outcome


class OrderPlaced(Message, frozen=True, kw_only=True):
    TOPIC = "examples.order.placed.v1"
    customer: str

    @property
    def key(self) -> str:
        return self.customer


class Orders(Row, frozen=True, kw_only=True):
    placed: int = 0


shop = Service("shop")


@shop.handler(orders=Table("orders-of-customers", Orders))
def count_order(event: OrderPlaced, orders: Orders | None) -> Outcome:
    """Count an order, in the lane's transaction."""
    return outcome(orders=Orders(placed=(orders or Orders()).placed + 1))


app = Worker(choreography(on(OrderPlaced, count_order)))
#: `internal`: Faust creates the topics, where brokers do not.
views = app.topic("examples.page.viewed", value_serializer="json", internal=True, partitions=1)
totals = app.topic("examples.page.totals", value_serializer="json", partitions=1)
viewed = app.Table("viewed", default=int, partitions=1)


@app.agent(views)  # type: ignore[untyped-decorator]  # Faust publishes no types
async def count_view(stream: Any) -> None:
    """Count the views of each page, and publish each total."""
    await totals.declare()
    async for page in stream:
        viewed[page] += 1
        await totals.send(key=page, value=viewed[page])


async def main() -> None:
    """Place an order through the lanes' client, and view pages through Faust's producer."""
    async with app.client("by-hand") as client:
        await client.send(OrderPlaced(customer="ada"), message_id="order-1")
    for page in ("/lamps", "/lamps", "/chairs"):
        await views.send(value=page)
    await app.agents_app.producer.stop()


if __name__ == "__main__":
    asyncio.run(main())
