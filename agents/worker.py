"""The composition root: only here are settings read and clients built.

`faust -A agents.worker worker` runs a worker; several on one machine take a slot each and share the lanes.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from agents.choreographies import payment_first, stock_first
from agents.gateway.client import HttpGateway
from agents.gateway.retries import Retries
from agents.order_saga import orchestrated
from agents.order_views import PAYMENT_FIRST, STOCK_FIRST, orders_as_sagas
from agents.settings import OrderSettings, Way
from schemas import latest
from streams.logs import configure_logs
from streams.model.application import Application
from streams.model.choreography import choreography
from streams.model.codecs import Schemas, avro
from streams.ports import Faults
from streams.runtime.app import LaneApp, settings_or_exit
from streams.runtime.loop import tune_process
from streams.s3 import claim_checks
from streams.system import SystemClock

CLAIMS = "claims"
#: What workers do, by the way that placed orders take; submitted ones have their saga in each.
CHOREOGRAPHIES = {
    way: choreography(*chosen.routes.values(), *orchestrated)
    for way, chosen in ((Way.STOCK_FIRST, stock_first), (Way.PAYMENT_FIRST, payment_first))
}
COURSES = {Way.STOCK_FIRST: STOCK_FIRST, Way.PAYMENT_FIRST: PAYMENT_FIRST}


def create_app(settings: OrderSettings, faults: Faults | None = None) -> LaneApp:
    """A worker of the order application; tests give it faults."""

    def bind(resources: dict[str, Any], schemas: Schemas) -> Application:
        own = {name: each for name, each in resources.items() if name != CLAIMS}
        return Application(
            settings.layout(),
            CHOREOGRAPHIES[settings.choreography],
            avro(latest, schemas),
            resources={**own, "clock": SystemClock()},
            lane_options=settings.lane_options(),
            claims=resources[CLAIMS],
        )

    retries = Retries(total=settings.gateway_patience, most=settings.gateway_attempts)
    gateway = HttpGateway(settings.gateway(), retries=retries)
    opened: dict[str, AbstractAsyncContextManager[Any]] = {
        "gateway": gateway,
        CLAIMS: claim_checks(settings),
    }
    shown = [orders_as_sagas(COURSES[settings.choreography])]
    return LaneApp(settings, bind, resources=opened, faults=faults, choreographed=shown)


tune_process()
configure_logs()
app = create_app(settings_or_exit(OrderSettings))
