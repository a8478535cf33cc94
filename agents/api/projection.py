"""What became of orders, from Kafka into PostgreSQL: each event once, and an ended order stays so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b

import msgspec
import structlog

from agents.api.statements import SQL
from agents.api.wire import Line
from agents.cancellation import CancellationRefused
from agents.message_bases import OrderEvent
from agents.messages import OrderCancelled, OrderConfirmed
from agents.settings import OrderSettings
from schemas import latest
from streams import Envelope
from streams.errors import ClusterUnavailable, PermanentError, TopicMismatch, TransientError, UnknownSchema
from streams.model.codecs import Schemas, avro
from streams.model.envelope import MAX_ID_BYTES
from streams.ports import Damaged, Record
from streams.postgres import Connection, ConsumerInbox, Database, InboxEvent, InboxMetrics
from streams.runtime.announcements import learn_schemas
from streams.runtime.groups import GroupReader

log = structlog.get_logger(__name__)

#: What tells of an order's end, and what its client hears when it would have called it off too late.
TOLD: tuple[type[OrderEvent], ...] = (OrderConfirmed, OrderCancelled, CancellationRefused)
CONSUMER = "orders-projection"
#: Between attempts while something does not answer, in seconds: doubled up to the most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
#: All of these pass, or somebody must see to them: until then the projection stands, and says why.
_STANDS = (ClusterUnavailable, TopicMismatch, TransientError, UnknownSchema)

_encode = msgspec.json.Encoder().encode


class Projection:
    """Takes order events to the table of orders, until it is cancelled.

    Attributes:
        standing: why it does not go on now; empty while it does.
        skipped: records that nobody can read, which it has passed.
    """

    def __init__(
        self, settings: OrderSettings, database: Database, metrics: InboxMetrics | None = None
    ) -> None:
        self._settings = settings
        self._inbox = ConsumerInbox(database, CONSUMER, metrics=metrics, keep_payloads=False)
        self._schemas = Schemas()
        make = avro(latest, self._schemas)
        self._kinds = {kind.TOPIC: make(kind, kind.TOPIC) for kind in TOLD}
        self.standing = "it has not joined its group yet"
        self.skipped = 0

    async def run(self) -> None:
        """Read and write; after an error, whatever it is, again from what was committed last."""
        pause = _FIRST_PAUSE
        while True:
            try:
                group = f"{self._settings.app_id}-{CONSUMER}"
                async with GroupReader(self._settings.brokers(), group, self._kinds) as reader:
                    while True:
                        records = await reader.fetch()
                        if records:
                            await self.take(records)
                            await reader.commit()
                        self.standing, pause = "", _FIRST_PAUSE
            except _STANDS as error:
                self.standing = str(error)
                log.warning("projection_stands", error=str(error), again_in=pause)
            except Exception as error:
                self.standing = f"nobody expected this: {error!r}"
                log.exception("projection_stands", again_in=pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def take(self, records: Sequence[Record]) -> None:
        """Write what these tell, in one transaction; what was written before does nothing.

        Raises DatabaseUnavailable, and UnknownSchema when nobody has announced a writer's schema.
        """
        events, messages = [], {}
        for record in records:
            try:
                message, event = await self._read(record)
            except PermanentError as error:
                self._skip(record, error)
            else:
                events.append(event)
                messages[event.event_id] = message

        async def write(connection: Connection, new: Sequence[InboxEvent]) -> None:
            await _write(connection, [messages[event.event_id] for event in new])

        await self._inbox.process_batch(events, write)

    def _skip(self, record: Record, error: PermanentError) -> None:
        """Lanes alone write these topics: no replay will make it readable, and the others are not to wait."""
        self.skipped += 1
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        log.error("projection_skips", **place, error=str(error))

    async def _read(self, record: Record) -> tuple[OrderEvent, InboxEvent]:
        envelope = Envelope(record)
        if isinstance(record, Damaged) or record.value is None:
            raise PermanentError(f"{record.topic}[{record.partition}] offset {record.offset} has no message")
        codec = self._kinds[record.topic]
        try:
            codec.require(envelope.fingerprint)
        except UnknownSchema:  # of a newer version of the application
            announcements = self._settings.layout().announcements
            await learn_schemas(self._settings.brokers(), announcements, self._schemas)
        message = codec.decode(record.value, envelope.fingerprint)
        return message, InboxEvent(_name(envelope), record.topic, envelope.type, record.value)


async def _write(connection: Connection, messages: Sequence[OrderEvent]) -> None:
    """The orders that have ended, each once, then those whose cancellation came too late."""
    ended: dict[str, OrderEvent] = {}
    for message in messages:
        if not isinstance(message, CancellationRefused):
            ended.setdefault(message.key, message)
    if ended:
        orders = [message.order for message in ended.values()]
        await connection.execute(
            SQL["settle"],
            [_storable(order.order_id) for order in orders],
            ["cancelled" if isinstance(each, OrderCancelled) else "confirmed" for each in ended.values()],
            [_storable(each.reason) if isinstance(each, OrderCancelled) else "" for each in ended.values()],
            [_storable(order.customer) for order in orders],
            [_storable(order.country) for order in orders],
            [order.total_cents for order in orders],
            [
                _encode([Line(sku=_storable(line.sku), units=line.units) for line in order.lines]).decode()
                for order in orders
            ],
        )
    refused = [_storable(each.key) for each in messages if isinstance(each, CancellationRefused)]
    if refused:
        await connection.execute(SQL["refuse_cancellation"], refused)


def _name(envelope: Envelope) -> str:
    """The same for the same event, as text that the inbox takes."""
    name = _storable(envelope.identity.decode("utf-8", "backslashreplace"))
    return name if len(name.encode()) <= MAX_ID_BYTES else blake2b(envelope.identity).hexdigest()


def _storable(text: str) -> str:
    """PostgreSQL keeps no character of 0."""
    return text.replace("\0", "\ufffd")
