"""The order application's worker, whose sagas wait only SAGA_TIMEOUT seconds for each reply."""

import os
from dataclasses import replace

from agents import worker
from agents.commands import OrderSagaRepair, OrderSagaTransition
from agents.order_saga import OrderSaga, order_saga
from agents.orders import handlers as orders
from agents.settings import OrderSettings
from streams.model.choreography import choreography
from streams.saga.engine import orchestrate
from streams.testing.faults import faults_from_environment
from tables.sagas import ORDER_SAGAS

TIMEOUT = float(os.environ["SAGA_TIMEOUT"])

stages = tuple(tuple(replace(step, timeout=TIMEOUT) for step in stage) for stage in OrderSaga.stages)
hasty = orchestrate(
    replace(OrderSaga, stages=stages),
    service=orders.service,
    table=ORDER_SAGAS,
    log=OrderSagaTransition,
    repairs=OrderSagaRepair,
)
for way, wiring in worker.CHOREOGRAPHIES.items():
    worker.CHOREOGRAPHIES[way] = choreography(
        *(
            replace(route, handlers=tuple(hasty if each is order_saga else each for each in route.handlers))
            for route in wiring.routes.values()
        )
    )
app = worker.create_worker(OrderSettings.read_or_exit(), faults_from_environment())
