"""Retries and a dead letter: a parcel service that is busy now and then, and an unknown city.

By hand:

    export STEADFAUST_APP_ID=retries      # in both terminals
    steadfaust up
    faust -A examples.retries_and_dead_letter worker      # in a second terminal
    python -m examples.retries_and_dead_letter            # sends three parcels
    steadfaust dlq list                                   # the parcel to Atlantis

The log has `handler_failed` for each failed attempt, with the decision that follows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from streams import (
    Message,
    Outcome,
    PermanentError,
    RetryPolicy,
    Row,
    Service,
    Table,
    TransientError,
    Worker,
    choreography,
    on,
    outcome,
)

#: Two attempts at once, then one after each delay, in seconds; then the message is a dead letter.
RETRY = RetryPolicy(immediate=1, delays=(1.0, 5.0))


class ParcelReady(Message, frozen=True, kw_only=True):
    TOPIC = "examples.parcel.ready.v1"
    parcel: str
    city: str

    @property
    def key(self) -> str:
        return self.parcel


class Label(Row, frozen=True, kw_only=True):
    number: str


@dataclass
class ParcelService:
    """The outside: it is busy at the first two calls for each parcel, and knows no Atlantis."""

    calls: Counter[str] = field(default_factory=Counter)

    async def label(self, parcel: str, city: str) -> str:
        """Print the label of a parcel: the same one, however often it is called."""
        self.calls[parcel] += 1
        if city == "Atlantis":
            raise PermanentError(f"no delivery to {city}: correct the address, then replay")
        if self.calls[parcel] <= 2:
            raise TransientError("the parcel service is busy")
        return f"{city}-{parcel}"


LABELS = Table("labels", Label)
shipping = Service("shipping")


@shipping.handler(label=LABELS, retry=RETRY)
async def print_label(ready: ParcelReady, label: Label | None, *, parcels: ParcelService) -> Outcome:
    """Print a label. An attempt may run again after a crash, so the call names the parcel."""
    number = label.number if label else await parcels.label(ready.parcel, ready.city)
    return outcome(label=Label(number=number))


wiring = choreography(on(ParcelReady, print_label))
app = Worker(wiring, resources={"parcels": ParcelService()})


async def main() -> None:
    async with app.client("by-hand") as shop:
        for parcel, city in (("p-1", "Oslo"), ("p-2", "Atlantis"), ("p-3", "Rome")):
            await shop.send(ParcelReady(parcel=parcel, city=city), message_id=f"ready-{parcel}")


if __name__ == "__main__":
    asyncio.run(main())
