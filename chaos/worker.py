"""The order application's worker in a chaos run, with the faults that it is armed with.

`CHAOS_VERSION=2` is the application after the rolling deploy, which handles one more topic.
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from agents.gateway.client import HttpGateway
from agents.gateway.retries import Retries
from agents.settings import OrderSettings
from chaos.arming import armed_faults
from chaos.failing import with_failures
from chaos.kinds import DELETE_RETENTION
from chaos.notes import VERSION, schema, whole, with_notes
from streams.logs import configure_logs
from streams.model.application import Application
from streams.model.codecs import Schemas, avro
from streams.policy.breaker import BreakerPolicy
from streams.ports import Faults
from streams.runtime.app import LaneApp, settings_or_exit
from streams.runtime.loop import tune_process
from streams.s3 import claim_checks
from streams.system import SystemClock

_CLAIMS = "claims"
#: Faults follow one another within seconds, and each must meet somebody: a breaker that stays open for a
#: minute after one outage would keep every call from the next.
_BREAKER = BreakerPolicy(open_for=1.0, max_open_for=2.0)


def create_app(settings: OrderSettings, faults: Faults) -> LaneApp:
    """A worker of the version that the environment says."""
    wiring = with_failures(with_notes if os.environ.get(VERSION) == "2" else whole)

    def bind(resources: dict[str, Any], schemas: Schemas) -> Application:
        own = {name: each for name, each in resources.items() if name != _CLAIMS}
        return Application(
            settings.layout(),
            wiring,
            avro(schema, schemas),
            resources={**own, "clock": SystemClock()},
            lane_options=replace(
                settings.lane_options(), breaker=_BREAKER, delete_retention=DELETE_RETENTION
            ),
            claims=resources[_CLAIMS],
        )

    retries = Retries(total=settings.gateway_patience, most=settings.gateway_attempts)
    gateway = HttpGateway(settings.gateway(), retries=retries)
    opened: dict[str, AbstractAsyncContextManager[Any]] = {
        "gateway": gateway,
        _CLAIMS: claim_checks(settings),
    }
    return LaneApp(settings, bind, resources=opened, faults=faults)


tune_process()
configure_logs()
app = create_app(settings_or_exit(OrderSettings), armed_faults())
