"""A worker with a handler on its lanes, and plain agents of Faust's beside them."""

from typing import Any

from streams import Message, Outcome, Row, Service, Table, Worker, choreography, on, outcome


class ParcelSent(Message, frozen=True, kw_only=True):
    """A parcel has left."""

    TOPIC = "mixed.parcel.sent.v1"
    parcel: str

    @property
    def key(self) -> str:
        return self.parcel


class Sent(Row, frozen=True, kw_only=True):
    """How often a parcel was sent."""

    times: int = 0


post = Service("post")


@post.handler(sent=Table("sent", Sent))
def note(event: ParcelSent, sent: Sent | None) -> Outcome:
    """Count it."""
    return outcome(sent=Sent(times=(sent or Sent()).times + 1))


app = Worker(choreography(on(ParcelSent, note)))
labels = app.topic("mixed.labels", value_serializer="json")
printed = app.topic("mixed.printed", value_serializer="json")
counts = app.Table("printed", default=int, partitions=1)


@app.agent(labels)
async def print_label(stream: Any) -> None:
    """Print labels; a torn one breaks the printer."""
    async for label in stream:
        if label == "torn":
            raise ValueError("the printer is jammed")
        counts["all"] += 1
        await printed.send(value=[label, counts["all"]])


@app.task
async def warm_up() -> None:
    """Tell that tasks are run, too."""
    await printed.send(value=["ready", 0])


@app.agent(app.topic("mixed.old-sent", value_serializer="json"))
async def move_over(stream: Any) -> None:
    """Hand what still comes to the old topic to the lanes, under an id that a repetition has, too."""
    async with app.client("old-sent") as lanes:
        async for event in stream.events():
            at = event.message
            message_id = f"{at.topic}-{at.partition}-{at.offset}"
            await lanes.send(ParcelSent(parcel=event.value), message_id=message_id)
            await lanes.flush()
