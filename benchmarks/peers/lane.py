"""The micro workload on the real lane: count events by key, remember their ids, pass each one on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.peers.workload import COUNT, COUNTED, MADE, PARTITIONS, Format, run_from_environment
from streams.host.app import LaneApp
from streams.model.application import Application
from streams.model.choreography import choreography, on
from streams.model.codecs import MakeCodec, Schemas, avro, json_without_schema
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, outcome
from streams.model.table import Table
from streams.settings import Settings

RUN = run_from_environment()


class EventMade(Message, frozen=True):
    """An event of the workload."""

    TOPIC: ClassVar[str] = RUN.source
    k: str
    i: int

    @property
    def key(self) -> str:
        """Its key."""
        return self.k


class EventCounted(Message, frozen=True):
    """The event passed on."""

    TOPIC: ClassVar[str] = RUN.output
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
SCHEMAS = {EventMade.TOPIC: MADE, EventCounted.TOPIC: COUNTED, COUNTS.name: COUNT}
service = Service("bench")


@service.handler(sends=(EventCounted,), count=COUNTS)
def count(event: EventMade, count: Count | None) -> Outcome:
    """Count and pass on."""
    n = 1 if count is None else count.n + 1
    return outcome(count=Count(n=n), send=[EventCounted(k=event.k, i=event.i, n=n)])


def codecs(schemas: Schemas) -> MakeCodec:
    """Those of the run's format."""
    if RUN.form is Format.JSON:
        return json_without_schema
    return avro(lambda subject: json.dumps(SCHEMAS[subject]), schemas)


def application(settings: Settings) -> LaneApp:
    """A worker of the workload."""
    wiring = choreography(on(EventMade, count))

    def bind(resources: dict[str, Any], schemas: Schemas) -> Application:
        layout, lane_options = settings.layout(), settings.lane_options()
        return Application(layout, wiring, codecs(schemas), resources=resources, lane_options=lane_options)

    return LaneApp(settings, bind)


app = application(
    Settings(
        app_id=RUN.name,
        bootstrap=RUN.bootstrap,
        var=Path(RUN.var),
        partitions=PARTITIONS,
        lanes=PARTITIONS,
        replication=1,
        web_port=0,
    )
)
