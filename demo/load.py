"""Puts the purchases into the application, as a client from outside would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced, StockReceived
from demo.edge import OrdersClient
from demo.evidence import make_codec, quiet
from demo.ground import DemoFailed
from demo.purchases import Purchase, attachments, order, receipts
from demo.trouble import poison, troubled_order
from streams.brokers import Bootstrap
from streams.host.client import Producer
from streams.model.claim_checks import ClaimChecks

SOURCE = "demo"
_SHELVED_WITHIN = 60.0
#: Requests of orders under way at most.
_AT_ONCE = 32


async def receive_stock(bootstrap: Bootstrap, app_id: str, laps: int = 1) -> None:
    """Have the stock for so many laps of the file delivered, and wait until it is on the shelves: an order
    that overtook it would fail.

    Raises DemoFailed when that takes too long.
    """
    async with Producer(bootstrap, make_codec, source=SOURCE) as producer:
        for receipt in receipts(laps):
            await producer.send(receipt, message_id=f"stock-{receipt.sku}")
    left = await quiet(bootstrap, app_id, within=_SHELVED_WITHIN, topics=(StockReceived.TOPIC,))
    if left:
        raise DemoFailed(f"no stock came to the shelves for {_SHELVED_WITHIN:.0f} s: {left} not handled")


async def place_orders(
    bootstrap: Bootstrap,
    purchases: Sequence[Purchase],
    placed: Callable[[Purchase], None],
    *,
    submitted: Callable[[Purchase], bool] = lambda _: False,
    room: Callable[[], Awaitable[object]] | None = None,
    claims: ClaimChecks | None = None,
    attached: float = 0.0,
    trouble: bool = False,
    over_http: OrdersClient | None = None,
) -> None:
    """Place an order for each purchase, a share of them with files attached, which needs `claims`. Ids are
    fixed, so that placing one again does nothing. With `trouble`, some cards meet an unavailable gateway, and
    poison is sent in between. Those that are `submitted` have a saga that sees to them. Before each, `room`
    is awaited. They go `over_http` if that is given, many at once, but for those with files too large for it.
    """
    place = troubled_order if trouble else order
    at_once = asyncio.Semaphore(_AT_ONCE)
    async with (
        Producer(bootstrap, make_codec, source=SOURCE, claims=claims) as producer,
        asyncio.TaskGroup() as tasks,
    ):

        async def begin(purchase: Purchase) -> None:
            try:
                begins = OrderSubmitted if submitted(purchase) else OrderPlaced
                message = begins(order=place(purchase), attachments=attachments(purchase, attached))
                if over_http is not None and over_http.takes(message):
                    await over_http.place(message)
                else:
                    await producer.send(message, message_id=f"placed-{purchase.order_id}")
                placed(purchase)
                if trouble and (bad := poison(purchase)) is not None:
                    await producer.send_record(bad.topic, bad.record)
            finally:
                at_once.release()

        for purchase in purchases:
            if room is not None:
                await room()
            await at_once.acquire()
            if over_http is None:
                await begin(purchase)
            else:
                tasks.create_task(begin(purchase))


class OrdersSeen(NamedTuple):
    """The orders in the system, as they are seen from outside.

    Attributes:
        under_way: orders that are placed and have not come to an end.
        settled: orders that came to their end within the last `DemoPace.seconds`.
        took: how long these were under way, the half of them at least, in seconds.
        oldest: how long the first of those under way is so, in seconds.
    """

    under_way: int
    settled: int
    took: float
    oldest: float


@dataclass(frozen=True, slots=True)
class DemoPace:
    """How long orders may be under way.

    Attributes:
        seconds: as long as that, on the whole.
        more: how many times what was settled may be under way: over 1, or the pace could only fall.
        least: so many may be under way, however slow the system is.
        most: and no more than so many, however fast it is.
        patience: seconds that the oldest may be under way before only `least` may be beside it. Well under a
            saga's time limit for a step, and over what a card that finds the gateway unavailable waits.
    """

    seconds: float = 2.0
    more: float = 1.5
    least: int = 24
    most: int = 1000
    patience: float = 12.0

    def room(self, seen: OrdersSeen) -> int:
        """How many to place now."""
        if seen.oldest > self.patience:
            return max(0, self.least - seen.under_way)
        at_this_pace = seen.settled * self.seconds / max(self.seconds, seen.took)
        allowed = min(self.most, max(self.least, int(self.more * at_this_pace)))
        return max(0, allowed - seen.under_way)
