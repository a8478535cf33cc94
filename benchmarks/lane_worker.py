"""A worker of the workload that `BENCH_WORKLOAD` names: `faust -A benchmarks.lane_worker worker`."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from benchmarks.growth.workload import WORKLOAD
from streams.host.app import LaneApp
from streams.model.application import Application
from streams.settings import Settings


def lane_app(module: str) -> LaneApp:
    """A worker by the settings of this process; the module has a function `application`."""
    settings = Settings.read_or_exit()
    application = import_module(module).application

    def bind(resources: dict[str, Any], schemas: Any) -> Application:
        del resources, schemas
        bound: Application = application(settings.layout(), settings.lane_options())
        return bound

    return LaneApp(settings, bind)


app = lane_app(os.environ[WORKLOAD])
