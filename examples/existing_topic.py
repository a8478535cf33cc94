"""Read an existing topic as it is: twelve partitions, JSON without ids, written by somebody else.

By hand:

    export STEADFAUST_APP_ID=points      # in both terminals
    steadfaust up
    python -m examples.existing_topic            # plays the owner: makes the topic, and writes two orders
    faust -A examples.existing_topic worker      # in a second terminal

docs/existing-topics.md explains it.
"""

from __future__ import annotations

import asyncio

from streams import Message, Outcome, Row, Service, Table, Worker, choreography, on, outcome
from streams.sources import SourceRecord, field, source

ORDERS = "examples.shop.orders"


class OrderPaid(Message, frozen=True, kw_only=True):
    """A customer has paid for an order."""

    TOPIC = "examples.order.paid.v1"
    customer: str
    cents: int

    @property
    def key(self) -> str:
        return self.customer


class Points(Row, frozen=True, kw_only=True):
    points: int = 0


loyalty = Service("loyalty")


@loyalty.handler(points=Table("points", Points))
def earn(event: OrderPaid, points: Points | None) -> Outcome:
    """One point per euro."""
    return outcome(points=Points(points=(points or Points()).points + event.cents // 100))


def paid(record: SourceRecord) -> OrderPaid | None:
    """Only paid orders are for us; a deleted order has no value."""
    order = record.value
    if order is None or order["status"] != "paid":
        return None
    return OrderPaid(customer=order["customer"]["id"], cents=order["total"])


app = Worker(choreography(source(ORDERS, into=paid, id=field("number")), on(OrderPaid, earn)))


async def main() -> None:
    """Do what the topic's owner does, in their partitions: they may send an order again."""
    orders = app.topic(ORDERS, value_serializer="json", internal=True, partitions=12)
    await orders.declare()
    for number, partition in enumerate((3, 11), start=1):
        order = {"number": number, "status": "paid", "customer": {"id": "ada"}, "total": 4900}
        for _ in range(2):
            await orders.send(value=order, partition=partition)
    await app.agents_app.producer.stop()


if __name__ == "__main__":
    asyncio.run(main())
