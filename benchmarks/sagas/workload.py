"""The order's saga by itself: a worker that conducts orders, whose participants are elsewhere, and silent
until the benchmark speaks for them.
"""

from __future__ import annotations

import os
from dataclasses import replace

from agents.commands import OrderSagaReply, OrderSagaTransition, OrderSubmitted
from agents.order_saga import OrderSaga
from agents.orders.handlers import service
from benchmarks.growth.workload import Workload
from schemas import latest
from streams.model.application import Application, LaneOptions
from streams.model.choreography import choreography, on
from streams.model.codecs import Schemas, avro
from streams.model.layout import Layout
from streams.saga.definition import Saga
from streams.saga.engine import orchestrate
from streams.system import SystemClock
from tables.sagas import ORDER_SAGAS

#: The setting of a worker that says how long it waits for each step, in seconds.
TIMEOUT = "STEADFAUST_STEP_TIMEOUT"


def _with_timeout(saga: Saga, seconds: float) -> Saga:
    """The same saga, with other timeouts."""
    stages = tuple(tuple(replace(step, timeout=seconds) for step in stage) for stage in saga.stages)
    return replace(saga, stages=stages)


def application(layout: Layout, lane_options: LaneOptions) -> Application:
    """The saga, bound; its steps wait for as long as `TIMEOUT` says."""
    saga = _with_timeout(OrderSaga, float(os.environ.get(TIMEOUT, "30")))
    conduct = orchestrate(saga, service=service, table=ORDER_SAGAS, log=OrderSagaTransition)
    wiring = choreography(on(OrderSubmitted, conduct), on(OrderSagaReply, conduct))
    codecs = avro(latest, Schemas())
    return Application(layout, wiring, codecs, resources={"clock": SystemClock()}, lane_options=lane_options)


FLIGHT = Workload("benchmarks.sagas.workload", application, lambda _app_id: OrderSubmitted.TOPIC)
