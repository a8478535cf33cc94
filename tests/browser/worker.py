"""The order application's worker with a till: until the file STEADFAUST_TILL is there, some payments fail.

Charges of orders named `refused-...` become dead letters. Refunds of orders named `stuck-...` fail, and their
sagas, which ask no second time, wait for an operator.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from agents import worker
from agents.commands import OrderSagaRepair, OrderSagaTransition
from agents.gateway.client import GatewayRetries, HttpGateway
from agents.order_saga import OrderSaga, order_saga
from agents.orders import handlers as orders
from agents.payments.gateway import Charge, Refund
from agents.settings import OrderSettings
from streams import PermanentError
from streams.model.choreography import choreography
from streams.saga.engine import orchestrate
from streams.saga.steps import NEVER
from tables.sagas import ORDER_SAGAS

TILL = Path(os.environ["STEADFAUST_TILL"])


class Till(HttpGateway):
    """The gateway, for as long as the till is open."""

    async def charge(self, *, operation: str, cents: int, card: str) -> Charge:
        _check(operation, "refused-")
        return await super().charge(operation=operation, cents=cents, card=card)

    async def refund(self, *, operation: str, charge_operation: str) -> Refund:
        _check(operation, "stuck-")
        return await super().refund(operation=operation, charge_operation=charge_operation)


def _check(operation: str, name: str) -> None:
    if name in operation and not TILL.exists():
        raise PermanentError(f"{operation}: the till is closed")


@asynccontextmanager
async def till(settings: OrderSettings) -> AsyncIterator[Till]:
    async with Till(settings.gateway(), retries=GatewayRetries(most=settings.gateway_attempts)) as client:
        yield client


stages = tuple(tuple(replace(step, retry_compensation=NEVER) for step in stage) for stage in OrderSaga.stages)
asks_once = orchestrate(
    replace(OrderSaga, stages=stages),
    service=orders.service,
    table=ORDER_SAGAS,
    log=OrderSagaTransition,
    repairs=OrderSagaRepair,
)
for way, wiring in worker.CHOREOGRAPHIES.items():
    worker.CHOREOGRAPHIES[way] = choreography(
        *(
            replace(
                route, handlers=tuple(asks_once if each is order_saga else each for each in route.handlers)
            )
            for route in wiring.routes.values()
        )
    )
worker.gateway_client = till  # type: ignore[assignment]
app = worker.create_worker(OrderSettings.read_or_exit())
