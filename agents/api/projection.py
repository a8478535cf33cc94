"""Writes the ends of orders from Kafka into PostgreSQL: each event once; an ended order stays ended."""

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
from streams.host.announcements import learn_schemas
from streams.host.dead_letter_writer import DeadLetterWriter, Unreadable
from streams.host.groups import GroupReader
from streams.kafka.clients import KafkaOptions
from streams.model.codecs import Schemas, avro
from streams.model.envelope import MAX_ID_BYTES
from streams.ports import Damaged, Record
from streams.postgres import Connection, ConsumerInbox, Database, InboxEvent, InboxMetrics
from streams.postgres.advice import curable_told

log = structlog.get_logger(__name__)

#: Events that end an order, and the refusal of a late cancellation.
END_EVENTS: tuple[type[OrderEvent], ...] = (OrderConfirmed, OrderCancelled, CancellationRefused)
CONSUMER = "orders-projection"
#: Between attempts while something does not answer, in seconds: doubled up to the most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
#: The projection waits for these to pass, or for an operator, and says why it waits.
_WAITS_FOR = (ClusterUnavailable, TopicMismatch, TransientError, UnknownSchema)

_encode = msgspec.json.Encoder().encode


class Projection:
    """Takes order events to the table of orders, until it is cancelled.

    Attributes:
        standing: why it does not go on now; empty while it does.
        skipped: undecodable records, which are dead letters now.
    """

    def __init__(
        self,
        settings: OrderSettings,
        database: Database,
        metrics: InboxMetrics | None = None,
        options: KafkaOptions | None = None,
    ) -> None:
        self._settings = settings
        self._options = options or KafkaOptions()
        self._group = f"{settings.app_id}-{CONSUMER}"
        self._letters: DeadLetterWriter | None = None
        self._inbox = ConsumerInbox(database, CONSUMER, metrics=metrics, keep_payloads=False)
        self._schemas = Schemas()
        make = avro(latest, self._schemas)
        self._kinds = {kind.TOPIC: make(kind, kind.TOPIC) for kind in END_EVENTS}
        self.standing = "it has not joined its group yet"
        self.skipped = 0

    async def run(self) -> None:
        """Read and write; after an error, whatever it is, again from what was committed last."""
        pause = _FIRST_PAUSE
        while True:
            try:
                brokers = self._settings.brokers()
                async with GroupReader(brokers, self._group, self._kinds, self._options) as reader:
                    while True:
                        records = await reader.fetch()
                        if records:
                            await self.take(records)
                            await reader.commit()
                        self.standing, pause = "", _FIRST_PAUSE
            except _WAITS_FOR as error:
                self.standing = str(error)
                log.warning("projection_stands", error=str(error), again_in=pause)
            except Exception as error:
                self.standing = f"unexpected error: {error!r}"
                log.exception("projection_stands", again_in=pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def take(self, records: Sequence[Record]) -> None:
        """Write these events in one transaction; an event that was written before has no effect. An
        undecodable record is a dead letter by then.

        Raises DatabaseUnavailable, StatementRefused, ClusterUnavailable when dead letters cannot be written,
        and UnknownSchema when the announcements lack a writer's schema.
        """
        events, messages, unreadable = [], {}, []
        for record in records:
            try:
                message, event = await self._read(record)
            except PermanentError as error:
                unreadable.append((record, error))
            else:
                events.append(event)
                messages[event.event_id] = message

        await self._give_up(unreadable)

        async def write(connection: Connection, new: Sequence[InboxEvent]) -> None:
            await _write(connection, [messages[event.event_id] for event in new])

        with curable_told():
            await self._inbox.process_batch(events, write)

    async def _give_up(self, unreadable: Sequence[Unreadable]) -> None:
        """The others are not to wait for these. Should this process end before the group's positions are
        committed, they are written again.
        """
        if not unreadable:
            return
        settings = self._settings
        if self._letters is None:
            self._letters = DeadLetterWriter(
                settings.brokers(),
                self._group,
                settings.lane_options(),
                self._options,
                app_id=settings.app_id,
                own=self._kinds,  # the order application sends all of them
            )
        await self._letters.write(unreadable)
        for record, error in unreadable:
            self.skipped += 1
            place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
            log.error("projection_gave_up", **place, error=str(error), action="it is a dead letter")

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
