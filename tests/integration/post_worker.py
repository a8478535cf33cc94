"""A small application for real workers: it counts the parcels that it sees, one row for each."""

from __future__ import annotations

from streams import Message, Outcome, Row, Service, Table, Worker, choreography, on, outcome
from streams.model.codecs import json_without_schema


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


app = Worker(choreography(on(ParcelSeen, note)), codecs=lambda _: json_without_schema)
