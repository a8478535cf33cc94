"""An orders API without a server, by a client."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from agents.api.orders import Orders
from agents.api.placing import OrderPlacing
from agents.api.rate_limit import RateLimit
from agents.api.routes import create_api, order_exists
from agents.settings import OrdersWay
from schemas import latest
from streams.http import Health, Requests
from streams.model.codecs import Schemas, avro
from streams.postgres import Database, MigrationSet, Outbox

MIGRATIONS = MigrationSet("orders", Path("agents/api/migrations").resolve())
CUP: dict[str, Any] = {
    "customer": "ada",
    "lines": [{"sku": "cup", "units": 2}],
    "total_cents": 1990,
    "card": "card-1",
    "country": "SE",
}


class Shop:
    def __init__(self, client: httpx.AsyncClient, database: Database, placing: OrderPlacing) -> None:
        self.client = client
        self.database = database
        self.placing = placing

    async def place(self, key: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        named = {"Idempotency-Key": key, **(headers or {})}
        return await self.client.post("/orders", json=CUP | more, headers=named)

    async def rows(self, table: str) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.database.pool.fetch(f"SELECT * FROM {table} ORDER BY 1")]


@asynccontextmanager
async def shop_on(
    url: str,
    *,
    outbox: type[Outbox] = Outbox,
    most: int = 4,
    patience: float = 5.0,
    keep: float = 3600.0,
    way: OrdersWay = OrdersWay.PLACED,
    caller_header: str = "",
) -> AsyncIterator[Shop]:
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(Database(url, least=0, most=most, patience=patience / 2))
        messages = outbox(avro(latest, Schemas()), source="orders-api")
        placing = await stack.enter_async_context(
            OrderPlacing(
                database, messages, keep=timedelta(seconds=keep), patience=patience, refuse=order_exists,
            )
        )  # fmt: skip
        app = create_api(
            placing, Orders(database, messages, patience=patience), Health([]), CollectorRegistry(),
            orders_way=way, max_body=100_000, limit=RateLimit(0), caller_header=caller_header,
        )  # fmt: skip
        transport = httpx.ASGITransport(Requests(app), raise_app_exceptions=False)  # type: ignore[arg-type]
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://shop")
        )
        yield Shop(client, database, placing)
