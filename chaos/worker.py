"""The order application's worker in a chaos run, with the faults that it is armed with.

`CHAOS_VERSION=2` is the application after the rolling deploy, which handles one more topic.
"""

from __future__ import annotations

import os
from typing import Any

from agents.gateway.client import HttpGateway
from agents.gateway.retries import Retries
from agents.settings import OrderSettings
from agents.worker import create_app
from chaos.arming import armed_faults
from chaos.notes import VERSION, schema, with_notes
from streams.application import Application
from streams.codecs import Schemas, avro
from streams.ports import Faults
from streams.runtime.app import LaneApp, settings_or_exit


def create_app_with_notes(settings: OrderSettings, faults: Faults) -> LaneApp:
    """A worker of version 2."""

    def bind(resources: dict[str, Any], schemas: Schemas) -> Application:
        return Application(
            settings.layout(),
            with_notes,
            avro(schema, schemas),
            resources=resources,
            delivery=settings.delivery(),
        )

    gateway = HttpGateway(settings.gateway(), retries=Retries(total=settings.gateway_patience))
    return LaneApp(settings, bind, resources={"gateway": gateway}, faults=faults)


_create = create_app_with_notes if os.environ.get(VERSION) == "2" else create_app
app = _create(settings_or_exit(OrderSettings), armed_faults())
