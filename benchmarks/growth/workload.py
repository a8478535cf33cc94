"""What a growing worker does: count events by key, remember their ids, pass each one on.

Each application has topics of its own, so that several can lie on one broker.
"""

# Annotations are evaluated here, not kept as text: they name classes that are made for each application.

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from streams.model.application import Application, LaneOptions
from streams.model.choreography import Choreography, choreography, on
from streams.model.codecs import json_without_schema
from streams.model.handlers import Service
from streams.model.layout import Layout
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, outcome
from streams.model.table import Table

#: The environment variable that names the module of a worker's workload.
WORKLOAD = "BENCH_WORKLOAD"


class Workload(NamedTuple):
    """What workers do: the module that has `application`, that function, and the topic of its events."""

    module: str
    application: Callable[[Layout, LaneOptions], Application]
    topic: Callable[[str], str]


class Count(Row, frozen=True):
    """How many events a key has had."""

    n: int


COUNTS = Table("counts", Count)


def events_topic(app_id: str) -> str:
    """Where an application's events come from."""
    return f"{app_id}.event.made.v1"


def wiring(app_id: str) -> Choreography:
    """The workload on the topics of an application."""

    class EventMade(Message, frozen=True):
        """An event."""

        TOPIC: ClassVar[str] = events_topic(app_id)
        k: str
        i: int

        @property
        def key(self) -> str:
            return self.k

    class EventCounted(Message, frozen=True):
        """The event passed on."""

        TOPIC: ClassVar[str] = f"{app_id}.event.counted.v1"
        k: str
        i: int
        n: int

        @property
        def key(self) -> str:
            return self.k

    service = Service("growth")

    @service.handler(sends=(EventCounted,), count=COUNTS)
    def count(event: EventMade, count: Count | None) -> Outcome:
        """Count and pass on."""
        n = 1 if count is None else count.n + 1
        return outcome(count=Count(n=n), send=[EventCounted(k=event.k, i=event.i, n=n)])

    return choreography(on(EventMade, count))


def application(layout: Layout, lane_options: LaneOptions) -> Application:
    """The workload, bound."""
    return Application(layout, wiring(layout.app_id), json_without_schema, lane_options=lane_options)


GROWTH = Workload("benchmarks.growth.workload", application, events_topic)
