"""The micro workload on the real lane: count events by key, remember their ids, pass each one on."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from streams.application import Application
from streams.choreography import choreography, on
from streams.codecs import json_without_schema
from streams.handlers import Service
from streams.logs import configure_logs
from streams.message import Message, Row
from streams.outcome import Outcome, outcome
from streams.runtime.app import LaneApp, settings_or_exit
from streams.runtime.loop import tune_process
from streams.settings import Settings
from streams.table import Table

SOURCE_TOPIC = os.environ.get("BENCH_TOPIC", "bench.event.made.v1")


class EventMade(Message, frozen=True):
    """An event of the workload."""

    TOPIC: ClassVar[str] = SOURCE_TOPIC
    k: str
    i: int

    @property
    def key(self) -> str:
        """Its key."""
        return self.k


class EventCounted(Message, frozen=True):
    """The event passed on."""

    TOPIC: ClassVar[str] = f"{SOURCE_TOPIC}.counted"
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


COUNTS = Table("counts", Count)
service = Service("bench")


@service.handler(sends=(EventCounted,), count=COUNTS)
def count(event: EventMade, count: Count | None) -> Outcome:
    """Count and pass on."""
    n = 1 if count is None else count.n + 1
    return outcome(count=Count(n=n), send=[EventCounted(k=event.k, i=event.i, n=n)])


def application(settings: Settings) -> LaneApp:
    """A worker of the workload."""
    wiring = choreography(on(EventMade, count))

    def bind(resources: dict[str, Any], schemas: Any) -> Application:
        del schemas
        return Application(
            settings.layout(), wiring, json_without_schema, resources=resources, delivery=settings.delivery()
        )

    return LaneApp(settings, bind)


tune_process()
configure_logs()
app = application(settings_or_exit(Settings))
