"""The database edge of a demo: the tables, a relay of the outbox and the orders API, each its own process.

Two APIs, because half of the orders are to go either way: one places them, the other submits them.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

import aiohttp
import msgspec

from agents.api.testing import ApiProcess
from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from agents.settings import OrderSettings
from demo.ground import DemoFailed
from demo.workers import PROJECT
from streams.postgres import LIBRARY, MigrationSet, migrate
from streams.postgres.database import connect

_RELAY = [str(Path(sys.executable).parent / "steadfaust"), "outbox", "relay"]
_MIGRATIONS = MigrationSet("orders", PROJECT / "agents" / "api" / "migrations")
_ENDS_WITHIN = 20.0


class Urls(NamedTuple):
    """Where the APIs are, by the way of their orders."""

    placed: str
    submitted: str


class DemoEdge:
    """Starts all of it, and ends each by its pid when left.

    Attributes:
        urls: where the APIs are, once it is entered.
    """

    urls: Urls

    def __init__(self, var: Path, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._var = var
        self._environment = environment
        self._say = say
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _open(self) -> None:
        logs = self._var / "log"
        logs.mkdir(parents=True, exist_ok=True)
        asyncio.run(make_tables(OrderSettings(var=self._var).postgres()))
        with (logs / "relay.log").open("ab") as log:
            relay = subprocess.Popen(
                _RELAY,
                cwd=PROJECT,
                env={**self._environment, "PORT": "0"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._opened.callback(_end, relay)
        enter = self._opened.enter_context
        placed = enter(ApiProcess(logs / "api-placed.log", self._given("placed", projection="true")))
        submitted = enter(
            ApiProcess(logs / "api-submitted.log", self._given("submitted", projection="false"))
        )
        self.urls = Urls(placed.url, submitted.url)
        self._say(f"the orders API answers on {placed.url} and {submitted.url}")

    def _given(self, way: str, *, projection: str) -> dict[str, str]:
        """One of them writes the ends of orders into PostgreSQL; more would share that."""
        own = {"STEADFAUST_ORDERS_WAY": way, "STEADFAUST_API_PROJECTION": projection}
        return {**self._environment, **own}


async def make_tables(url: str) -> None:
    """Bring the database to the newest state of the library's tables and the orders API's."""
    connection = await connect(url)
    try:
        await migrate(connection, [LIBRARY, _MIGRATIONS])
    finally:
        await connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
