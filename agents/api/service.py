"""The orders API as a whole: made of settings, run in the event loop of its process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Self

import structlog
from prometheus_client import CollectorRegistry

from agents.api.orders import Orders
from agents.api.placing import OrderPlacing
from agents.api.projection import Projection
from agents.api.rate_limit import RateLimit
from agents.api.readiness import read_only, unready
from agents.api.routes import create_api, order_exists
from agents.api.traced import Traced
from agents.settings import OrderSettings
from schemas import latest
from streams.control.metrics.throttled import ThrottledSeconds
from streams.errors import TransientError
from streams.host.access import check_access
from streams.http import Check, Health, HttpServer, Requests
from streams.kafka.throttles import throttles
from streams.model.codecs import Schemas, avro
from streams.postgres import Database, InboxMetrics, Outbox
from streams.postgres.advice import curable_told
from streams.postgres.cleanup import DatabaseCleanup, Retention
from streams.postgres.watch import DatabaseWatch

log = structlog.get_logger(__name__)

#: Between looks for idempotency keys that have expired, in seconds.
_FORGET_EVERY = 60.0
#: The CloudEvents source of what the API publishes.
SOURCE = "orders-api"


class OrdersApi:
    """Serves the orders API while it is entered, and writes the ends of orders beside it.

    It starts without PostgreSQL and Kafka, too: `/health` tells what is missing.

    Attributes:
        url: where, once it is entered.
        registry: what `/metrics` tells.
    """

    def __init__(self, settings: OrderSettings, port: Callable[[], int]) -> None:
        self._settings = settings
        self._port = port
        self._opened = AsyncExitStack()
        self.url = ""
        self.registry = CollectorRegistry()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._opened.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def _open(self) -> None:
        settings, enter = self._settings, self._opened.enter_async_context
        patience = settings.api_patience
        database = await enter(
            Database(
                settings.postgres(),
                least=0,  # none is needed to start
                most=settings.api_connections,
                patience=patience / 2,
                name="orders-api",
            )
        )
        outbox = Outbox(avro(latest, Schemas()), source=SOURCE, limit=settings.max_message_bytes)
        placing = await enter(
            OrderPlacing(
                database,
                outbox,
                keep=timedelta(hours=settings.idempotency_hours),
                patience=patience,
                refuse=order_exists,
            )
        )
        orders = Orders(database, outbox, patience=patience)
        watch = DatabaseWatch(database, self.registry)
        checks = [
            Check("PostgreSQL", partial(_ready, database)),
            Check("writing", partial(read_only, database), "DEGRADED"),
            Check("orders", partial(_keeps_up, placing), "DEGRADED"),
            Check("outbox", watch.outbox, "DEGRADED"),
            Check("queues", watch.queues, "DEGRADED"),
            Check("migrations", watch.migrations, "DEGRADED"),
        ]
        await enter(_beside(watch.run()))
        if settings.cleanup_every:
            cleanup = DatabaseCleanup(database, Retention.of(settings))
            await enter(_beside(cleanup.run(settings.cleanup_every)))
        await enter(_beside(_forget_keys(orders)))
        if settings.api_projection:
            await check_access(settings)
            projection = Projection(settings, database, InboxMetrics(self.registry))
            checks.append(Check("projection", partial(_goes_on, projection), "DEGRADED"))
            checks.append(Check("quotas", throttles.check, "DEGRADED"))
            self.registry.register(ThrottledSeconds(throttles.seconds))
            await enter(_beside(projection.run()))
        app = create_api(
            placing,
            orders,
            Health(checks),
            self.registry,
            orders_way=settings.orders_way,
            max_body=settings.api_max_body,
            limit=RateLimit(settings.api_rate),
            caller_header=settings.api_caller_header,
        )
        named: Any = Requests(app)
        if (tracer := await enter(settings.tracing(settings.app_id))) is not None:
            named = Traced(named, tracer, service=SOURCE)
        server = await enter(HttpServer(named, host=settings.api_host, port=self._port()))
        self.url = server.url


async def _ready(database: Database) -> str:
    with curable_told():
        return await unready(database)


async def _keeps_up(placing: OrderPlacing) -> str:
    return f"{placing.waiting} requests wait" if placing.waiting > placing.most_waiting / 2 else ""


async def _goes_on(projection: Projection) -> str:
    if projection.standing or not projection.skipped:
        return projection.standing
    return f"{projection.skipped} records could not be read, and are dead letters: the log names them"


async def _forget_keys(orders: Orders) -> None:
    while True:
        await asyncio.sleep(_FORGET_EVERY)
        try:
            await orders.forget_keys()
        except TransientError as error:
            log.warning("idempotency_keys_not_forgotten", error=str(error))


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something for as long as this is entered; its death is logged when it happens."""
    task = asyncio.create_task(work)
    task.add_done_callback(_tell)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("orders_api_task_died", exc_info=error)
