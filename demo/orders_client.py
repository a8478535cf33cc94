"""A client of the orders API, as anybody would write one: it sends a request again, under its key, until it
is answered.
"""

from __future__ import annotations

import asyncio
import time
from typing import Self

import aiohttp
import msgspec

from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from demo.edge import Urls
from demo.errors import DemoFailed

#: Bytes of files that a request takes, in base64; the API's own limit is for the whole body.
_MOST_OF_FILES = 600_000
_ANSWERED_WITHIN = 60.0
_AGAIN_AFTER = 0.2
#: Seconds after which an answer is not waited for any more; the API answers sooner, if it runs.
_ASKED_FOR = 15.0
_ACCEPTED, _CONFLICT, _UNAVAILABLE = 202, 409, 503


class OrdersClient:
    """Places orders over HTTP; use it `async with`."""

    def __init__(self, urls: Urls) -> None:
        self._urls = urls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=_ASKED_FOR)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def takes(self, message: OrderPlaced | OrderSubmitted) -> bool:
        """Whether its files are small enough."""
        return sum(len(file.data) for file in message.attachments) <= _MOST_OF_FILES

    async def place(self, message: OrderPlaced | OrderSubmitted) -> None:
        """Place what this message begins. Raises DemoFailed when it is refused, or not answered in time."""
        order = message.order
        url = self._urls.submitted if isinstance(message, OrderSubmitted) else self._urls.placed
        body = msgspec.json.encode(msgspec.to_builtins(order) | {"attachments": message.attachments})
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"placed-{order.order_id}"}
        deadline = time.monotonic() + _ANSWERED_WITHIN
        while True:
            status, text = await self._ask(f"{url}/orders", body, headers)
            if status == _ACCEPTED or (status == _CONFLICT and "order-exists" in text):  # an earlier demo's
                return
            waits = status in (0, _UNAVAILABLE) or (status == _CONFLICT and "key-in-flight" in text)
            if not waits or time.monotonic() > deadline:
                raise DemoFailed(f"the orders API answered {status} to order {order.order_id}: {text}")
            await asyncio.sleep(_AGAIN_AFTER)

    async def _ask(self, url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        """0: there was no answer."""
        if self._session is None:
            raise RuntimeError("the client was not entered")
        try:
            async with self._session.post(url, data=body, headers=headers) as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return 0, repr(error)
