"""The order application's worker: `faust -A agents.worker worker`. Several of them share the lanes."""

from __future__ import annotations

from typing import Any

from agents.api.service import OrdersApi
from agents.choreographies import payment_first, stock_first
from agents.gateway.client import gateway_client
from agents.order_saga import orchestrated
from agents.order_views import PAYMENT_FIRST, STOCK_FIRST, orders_as_sagas
from agents.settings import OrderSettings, Way
from schemas import latest
from streams import Worker, choreography
from streams.ports import Faults

#: What workers do, by the way that placed orders take; submitted ones have their saga in each.
CHOREOGRAPHIES = {
    way: choreography(*chosen.routes.values(), *orchestrated)
    for way, chosen in ((Way.STOCK_FIRST, stock_first), (Way.PAYMENT_FIRST, payment_first))
}
COURSES = {Way.STOCK_FIRST: STOCK_FIRST, Way.PAYMENT_FIRST: PAYMENT_FIRST}


def create_worker(settings: OrderSettings, faults: Faults | None = None) -> Worker:
    """A worker of the order application; tests give it faults."""
    way = settings.choreography
    resources: dict[str, Any] = {"gateway": gateway_client(settings)}
    if settings.api_port:
        resources["orders_api"] = OrdersApi(settings, lambda: settings.api_port + slot_number())
    worker = Worker(
        CHOREOGRAPHIES[way],
        settings=settings,
        schemas=latest,
        resources=resources,
        choreographed=[orders_as_sagas(COURSES[way])],
        faults=faults,
    )

    def slot_number() -> int:
        return worker.slot.number if worker.slot is not None else 0

    return worker


app = create_worker(OrderSettings.read_or_exit())
