"""A small application for real workers: it counts the parcels that it sees, one row for each."""

from __future__ import annotations

from typing import Any

from streams.model.application import Application
from streams.model.choreography import choreography, on
from streams.model.codecs import Schemas, json_without_schema
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, outcome
from streams.model.table import Table
from streams.runtime.app import LaneApp, settings_or_exit
from streams.settings import Settings


class Parcel(Row, frozen=True, kw_only=True):
    """A parcel and how often it was seen."""

    seen: int


class ParcelSeen(Message, frozen=True, kw_only=True):
    """Somebody has seen a parcel."""

    TOPIC = "web.parcel.seen.v1"
    parcel: str

    @property
    def key(self) -> str:
        return self.parcel


PARCELS = Table("parcels", Parcel)
post = Service("post")


@post.handler(parcel=PARCELS)
def note(seen: ParcelSeen, parcel: Parcel | None) -> Outcome:
    """Count it."""
    return outcome(parcel=Parcel(seen=1 if parcel is None else parcel.seen + 1))


def bind(resources: dict[str, Any], schemas: Schemas) -> Application:
    settings = Settings()
    return Application(
        settings.layout(),
        choreography(on(ParcelSeen, note)),
        json_without_schema,
        lane_options=settings.lane_options(),
    )


app = LaneApp(settings_or_exit(Settings), bind)
