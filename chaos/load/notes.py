"""What version 2 of the order application adds, for the rolling deploy: notes, counted by order."""

from __future__ import annotations

from agents.choreographies import stock_first
from agents.order_saga import orchestrated
from schemas import latest
from streams.model.avro_types import derived_schema
from streams.model.choreography import choreography, on
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, outcome
from streams.model.table import Table

#: The environment variable that tells a worker of a chaos run which version of the application it is.
VERSION = "CHAOS_VERSION"
#: The driver makes so many notes about an order.
NOTES_EACH = 3


class NoteMade(Message, frozen=True, kw_only=True):
    """Someone noted something about an order.

    Attributes:
        order_id: the order that the note is about.
        text: what was noted.
    """

    TOPIC = "chaos.note.made.v1"

    order_id: str
    text: str

    @property
    def key(self) -> str:
        """The order's id."""
        return self.order_id


class Notes(Row, frozen=True, kw_only=True):
    """The notes about an order.

    Attributes:
        count: how many there are.
    """

    count: int = 0


NOTES = Table("notes", Notes)
_ADDED = {NoteMade.TOPIC: NoteMade, NOTES.name: Notes}
service = Service("notes")


@service.handler(notes=NOTES)
def count(event: NoteMade, notes: Notes | None) -> Outcome:  # noqa: ARG001 - only that it came counts
    """Not idempotent by itself on purpose: a note that is handled twice shows in its row."""
    return outcome(notes=Notes(count=(notes or Notes()).count + 1))


#: The wiring of a run: orders by choreography and by saga; and that of version 2.
whole = choreography(*stock_first.routes.values(), *orchestrated)
with_notes = choreography(*whole.routes.values(), on(NoteMade, count))


def schema(subject: str) -> str:
    """The schema of a topic's messages or a table's rows in version 2, as text: what it adds is not frozen.
    Raises LookupError.
    """
    kind = _ADDED.get(subject)
    return latest(subject) if kind is None else derived_schema(kind)


def note(number: int, order_ids: list[str]) -> NoteMade:
    """The note of this number, from 0: the first NOTES_EACH are about the first order, and so on."""
    return NoteMade(order_id=order_ids[number // NOTES_EACH], text=f"note {number}")


def note_id(number: int) -> str:
    """The message id of a note, the same whenever it is sent."""
    return f"note-{number}"
