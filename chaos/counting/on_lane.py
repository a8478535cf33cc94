"""The counting on a lane."""

from __future__ import annotations

from typing import Any, ClassVar

from chaos.counting.workload import TABLE, input_topic, output_topic
from streams.model.application import Application
from streams.model.choreography import choreography, on
from streams.model.codecs import json_without_schema
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, outcome
from streams.model.table import Table
from streams.runtime.faust.app import LaneApp
from streams.settings import Settings


class EventMade(Message, frozen=True):
    """An event of the workload."""

    TOPIC: ClassVar[str] = input_topic()
    k: str
    i: int

    @property
    def key(self) -> str:
        """Its key."""
        return self.k


class EventCounted(Message, frozen=True):
    """The event passed on, with its key's count."""

    TOPIC: ClassVar[str] = output_topic(input_topic())
    k: str
    i: int
    n: int

    @property
    def key(self) -> str:
        """Its key."""
        return self.k


class Count(Row, frozen=True):
    """How many events a key has had."""

    n: int


COUNTS = Table(TABLE, Count)
service = Service("counting")


@service.handler(sends=(EventCounted,), counted=COUNTS)
def count(event: EventMade, counted: Count | None) -> Outcome:
    """Count and pass on."""
    n = 1 + (counted.n if counted else 0)
    return outcome(counted=Count(n=n), send=[EventCounted(k=event.k, i=event.i, n=n)])


def application(settings: Settings) -> LaneApp:
    """A worker of the workload."""
    wiring = choreography(on(EventMade, count))

    def bind(resources: dict[str, Any], schemas: Any) -> Application:
        del schemas
        return Application(
            settings.layout(),
            wiring,
            json_without_schema,
            resources=resources,
            lane_options=settings.lane_options(),
        )

    return LaneApp(settings, bind)


app = application(Settings.read_or_exit())
