"""A worker process of a workload that needs nothing but Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams.model.application import Application, LaneOptions
from streams.model.layout import Layout
from streams.runtime.faust.app import LaneApp
from streams.settings import Settings


def lane_app(application: Callable[[Layout, LaneOptions], Application]) -> LaneApp:
    """The worker, by the settings of this process."""
    settings = Settings.read_or_exit()

    def bind(resources: dict[str, Any], schemas: Any) -> Application:
        del resources, schemas
        return application(settings.layout(), settings.lane_options())

    return LaneApp(settings, bind)
