"""A small application for real workers: it counts the parcels that it sees, one row for each."""

import os

from streams import Message, Outcome, PermanentError, Row, Service, Table, Worker, choreography, on, outcome
from streams.model.codecs import json_without_schema


class Parcel(Row, frozen=True, kw_only=True):
    """A parcel and how often it was seen."""

    seen: int


class ParcelSeen(Message, frozen=True, kw_only=True):
    """Somebody has seen a parcel."""

    TOPIC = os.environ.get("POST_TOPIC", "web.parcel.seen.v1")
    parcel: str

    @property
    def key(self) -> str:
        return self.parcel


PARCELS = Table("parcels", Parcel)
post = Service("post")


@post.handler(parcel=PARCELS)
def note(seen: ParcelSeen, parcel: Parcel | None) -> Outcome:
    """Count it. Of some nobody knows anything, and some cannot be looked up for now."""
    if seen.parcel.startswith("lost-"):
        raise PermanentError(f"there is no <b>{seen.parcel}</b>")
    if seen.parcel.startswith("late-"):
        raise ConnectionError("the register does not answer")
    return outcome(parcel=Parcel(seen=1 if parcel is None else parcel.seen + 1))


app = Worker(choreography(on(ParcelSeen, note)), codecs=lambda _: json_without_schema)
