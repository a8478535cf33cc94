"""A first handler: each payment earns its customer a point for each whole unit of currency, once.

By hand:

    export STEADFAUST_APP_ID=first-handler      # in both terminals
    steadfaust up
    faust -A examples.first_handler worker      # in a second terminal
    python -m examples.first_handler            # sends one payment twice

Then http://127.0.0.1:6066/tables/points/rows?key=ada shows 49 points: the inbox has dropped the repetition.
"""

from __future__ import annotations

import asyncio

from streams import Message, Outcome, Row, Service, Table, Worker, choreography, on, outcome


class OrderPaid(Message, frozen=True, kw_only=True):
    """A customer has paid an order.

    Attributes:
        customer: the customer's id.
        cents: the amount.
    """

    TOPIC = "examples.order.paid.v1"

    customer: str
    cents: int

    @property
    def key(self) -> str:
        """The customer: all messages of one customer are handled in order."""
        return self.customer


class Points(Row, frozen=True, kw_only=True):
    """The points of one customer."""

    earned: int = 0


POINTS = Table("points", Points)
loyalty = Service("loyalty")


@loyalty.handler(points=POINTS)
def earn(paid: OrderPaid, points: Points | None) -> Outcome:
    """Add the points of one payment. A customer without points has no row."""
    before = points or Points()
    return outcome(points=Points(earned=before.earned + paid.cents // 100))


wiring = choreography(on(OrderPaid, earn))
app = Worker(wiring)


async def main() -> None:
    """Send one payment twice, under one id."""
    async with app.client("by-hand") as shop:
        for _ in range(2):
            await shop.send(OrderPaid(customer="ada", cents=4900), message_id="payment-1")


if __name__ == "__main__":
    asyncio.run(main())
