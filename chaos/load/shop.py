"""The client of the orders API in a run: it asks again until it is answered, or asks once and gives up."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Self
from zlib import crc32

import aiohttp
import msgspec

from agents.messages import Order
from chaos.rig.records import ACCEPTED, UNANSWERED, Request, Way
from chaos.rig.waiting import ChaosFailed

_AGAIN_AFTER = 0.2
#: Seconds after which an answer is not waited for any more; the API answers sooner, if it runs.
_ANSWERS_WITHIN = 10.0
#: Of those who ask once, every second one waits only so many milliseconds: about as long as an order takes,
#: so that the API often does what its client no longer waits for.
_IMPATIENT = range(5, 60)
NOT_THERE, CONFLICT, TOO_MANY, UNAVAILABLE = 404, 409, 429, 503
#: After these the order may be placed or not, or the request must be repeated.
_SAY_NOTHING = {UNANSWERED, TOO_MANY, UNAVAILABLE}


class Shop:
    """Places orders over HTTP, and calls them off; use it `async with`.

    Attributes:
        requests: the last request and its answer, by order id.
        accepted: how many orders each API has accepted so far.
        again: how many requests were sent again.
    """

    def __init__(self, urls: dict[Way, str]) -> None:
        self.requests: dict[str, Request] = {}
        self.accepted: Counter[Way] = Counter()
        self.again = 0
        self._urls = urls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def place(self, order: Order, way: Way, files: tuple[Any, ...] = (), *, once: bool = False) -> None:
        """Place an order: until it is accepted, or `once`, whatever is answered then, or not in time.

        Raises ChaosFailed when it is refused.
        """
        body = msgspec.json.encode(msgspec.to_builtins(order) | {"attachments": files})
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"placed-{order.order_id}"}
        self._note(order.order_id, way=way)
        while True:
            within = patience(order.order_id) if once else _ANSWERS_WITHIN
            status, text = await self._ask("POST", f"{self._urls[way]}/orders", body, headers, within)
            if not self.requests[order.order_id].accepted:  # by an earlier request: clients repeat themselves
                self._note(order.order_id, placed=status)
            if status == ACCEPTED:
                self.accepted[way] += 1
                return
            if status not in _SAY_NOTHING and not (status == CONFLICT and "key-in-flight" in text):
                raise ChaosFailed(f"the orders API answered {status} to order {order.order_id}: {text}")
            if once:
                return
            await self._wait()

    async def call_off(self, order_id: str, way: Way) -> None:
        """Call an order off, until it is answered that it is, or is too late, or is unknown."""
        while True:
            status, text = await self._ask("DELETE", f"{self._urls[way]}/orders/{order_id}", b"", {})
            if status in (ACCEPTED, NOT_THERE, CONFLICT):
                before = self.requests.get(order_id)
                if before is None or before.called_off != ACCEPTED:
                    self._note(order_id, way=way, called_off=status)
                return
            if status not in _SAY_NOTHING:
                raise ChaosFailed(f"the orders API answered {status} to a cancellation: {text}")
            await self._wait()

    async def _wait(self) -> None:
        self.again += 1
        await asyncio.sleep(_AGAIN_AFTER)

    def _note(self, order_id: str, **fields: Any) -> None:
        noted = self.requests.get(order_id) or Request(order_id=order_id, way=fields["way"])
        self.requests[order_id] = msgspec.structs.replace(noted, **fields)

    async def _ask(
        self,
        method: str,
        url: str,
        body: bytes,
        headers: dict[str, str],
        within: float = _ANSWERS_WITHIN,
    ) -> tuple[int, str]:
        if self._session is None:
            raise RuntimeError("the client was not entered")
        try:
            timeout = aiohttp.ClientTimeout(total=within)
            asking = self._session.request(method, url, data=body, headers=headers, timeout=timeout)
            async with asking as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return UNANSWERED, repr(error)


def patience(order_id: str) -> float:
    """Seconds that the client of an order waits who asks once, the same each time."""
    drawn = crc32(order_id.encode())
    return _IMPATIENT[drawn // 2 % len(_IMPATIENT)] / 1000 if drawn % 2 else _ANSWERS_WITHIN
