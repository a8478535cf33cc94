"""A worker of the failures workload: `faust -A benchmarks.failures.worker worker`."""

from __future__ import annotations

from typing import Any

from benchmarks.failures.workload import application
from streams.application import Application
from streams.logs import configure_logs
from streams.runtime.app import LaneApp, settings_or_exit
from streams.runtime.loop import tune_process
from streams.settings import Settings


def create_app(settings: Settings) -> LaneApp:
    """A worker."""

    def bind(resources: dict[str, Any], schemas: Any) -> Application:
        del resources, schemas
        return application(settings.layout(), settings.delivery())

    return LaneApp(settings, bind)


tune_process()
configure_logs()
app = create_app(settings_or_exit(Settings))
