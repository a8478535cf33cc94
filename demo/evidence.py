"""Evidence for the check, gathered from outside the application: its topics, and the gateway's ledger."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import aiohttp
import msgspec

from agents.cancellation import RequestCancellation, StopShipment
from agents.commands import (
    CancelOrder,
    CancelShipment,
    CapturePayment,
    ConfirmOrder,
    OrderSagaReply,
    OrderSubmitted,
    RefundPayment,
    ReleaseStock,
    ReserveStock,
    ScheduleShipment,
)
from agents.gateway.wire import Charged, LedgerPage, Refunded
from agents.messages import (
    DocumentsPacked,
    HandleLines,
    LineRefused,
    LineReleased,
    LineReserved,
    Order,
    OrderCancelled,
    OrderConfirmed,
    OrderDocumented,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    ReleaseLine,
    ReservationSettled,
    ReserveLine,
    ShipLine,
    ShipmentFailed,
    ShipmentScheduled,
    StockReceived,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from demo.failures import DeadLetter, Reference, Retry, dead_letters, poison_sent, retries
from demo.purchases import ExpectedOutcome
from schemas import latest
from streams.host.client import TopicReader, unhandled, waiting
from streams.model.claim import claim_in
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import AvroCodec, Schemas, avro, decode_row
from streams.model.envelope import ID, SOURCE
from streams.model.message import Message, Row
from streams.model.row_keys import split_row_key
from streams.ports import Record
from streams.saga.state import SagaRow
from tables.sagas import ORDER_SAGAS
from tables.stock import STOCK, StockLevel

if TYPE_CHECKING:
    from streams.brokers import Bootstrap  # for its annotations alone: the checker is independent


R = TypeVar("R", bound=Row)

#: Every message that some service handles.
HANDLED: tuple[type[Message], ...] = (
    CancelOrder,
    CancelShipment,
    CapturePayment,
    ConfirmOrder,
    HandleLines,
    LineRefused,
    LineReleased,
    LineReserved,
    OrderDocumented,
    OrderPlaced,
    OrderSagaReply,
    OrderSubmitted,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    RefundPayment,
    ReleaseLine,
    ReleaseStock,
    ReservationSettled,
    ReserveLine,
    RequestCancellation,
    ReserveStock,
    ScheduleShipment,
    ShipLine,
    ShipmentFailed,
    ShipmentScheduled,
    StockReceived,
    StockReleased,
    StockReservationFailed,
    StockReserved,
    StopShipment,
)
SOURCES = tuple(message.TOPIC for message in HANDLED)

_schemas = Schemas()
make_codec = avro(latest, _schemas)
_confirmed = AvroCodec(OrderConfirmed, latest(OrderConfirmed.TOPIC), _schemas)
_cancelled = AvroCodec(OrderCancelled, latest(OrderCancelled.TOPIC), _schemas)
_receipt = AvroCodec(StockReceived, latest(StockReceived.TOPIC), _schemas)
_leaving = AvroCodec(ShipLine, latest(ShipLine.TOPIC), _schemas)
_level = AvroCodec(StockLevel, latest(STOCK.name), _schemas)
_saga = AvroCodec(SagaRow, latest(ORDER_SAGAS.name), _schemas)
_packed = AvroCodec(DocumentsPacked, latest(DocumentsPacked.TOPIC), _schemas)
_PAGE = 10_000
_LOOK_EVERY = 0.2
#: How many times its bound a wait lasts at most, while things change.
_LONGEST = 10


class Settlement(msgspec.Struct, frozen=True):
    """A message that ends an order: `outcome` is `confirmed`, or why it was cancelled."""

    message_id: str
    order: Order
    outcome: str


@dataclass
class DemoEvidence:
    """All of it.

    Attributes:
        settlements: every OrderConfirmed and OrderCancelled.
        ledger: every operation at the gateway.
        received: pieces by SKU, from the receipts that came in; one that was sent twice counts once.
        shipped: pieces by SKU, from the commands that let them leave.
        stock: the stock table, from its changelog.
        sagas: the sagas by order id, from their table's changelog.
        unhandled: messages not handled yet, by topic or by the handler for which they wait.
        dead_letters: every one.
        poison: how often each poisonous record was sent, by key.
        retries: each time that a message was postponed.
        packed: name and SHA-256 of each file that is in a parcel, by order, each time that it was packed.
        references: payloads that are not in their records.
        tracked: what the orders table on Kafka says of each order: `confirmed`, or why it was cancelled.
        in_postgres: the same, as PostgreSQL has it; None: not read.
    """

    settlements: list[Settlement] = field(default_factory=list)
    ledger: list[Charged | Refunded] = field(default_factory=list)
    received: Counter[str] = field(default_factory=Counter)
    shipped: Counter[str] = field(default_factory=Counter)
    stock: dict[str, StockLevel] = field(default_factory=dict)
    sagas: dict[str, SagaRow] = field(default_factory=dict)
    unhandled: dict[str, int] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    poison: Counter[str] = field(default_factory=Counter)
    retries: list[Retry] = field(default_factory=list)
    packed: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    references: list[Reference] = field(default_factory=list)
    tracked: dict[str, str] = field(default_factory=dict)
    in_postgres: dict[str, str] | None = None


async def gather(bootstrap: Bootstrap, gateway: str, app_id: str, *, within: float) -> DemoEvidence:
    """Wait until nothing is under way any more, or nothing of it changes for so long; then look."""
    left = await quiet(bootstrap, app_id, within=within)
    return DemoEvidence(
        settlements=await settlements(bootstrap),
        ledger=await ledger_of(gateway),
        received=await _received(bootstrap),
        shipped=await _shipped(bootstrap),
        stock=await table_of(bootstrap, f"{app_id}-{STOCK.name}-changelog", _level),
        sagas=await table_of(bootstrap, f"{app_id}-{ORDER_SAGAS.name}-changelog", _saga),
        unhandled=left,
        dead_letters=await dead_letters(bootstrap, SOURCES),
        poison=await poison_sent(bootstrap),
        retries=await retries(bootstrap, SOURCES),
    )


async def quiet(
    bootstrap: Bootstrap, app_id: str, *, within: float, topics: tuple[str, ...] = SOURCES
) -> dict[str, int]:
    """Wait until every message has been handled; returns what is left when nothing of it has changed for
    `within` seconds: by topic, or by the handler for which it waits.

    Releases and refunds may follow the cancellation that they belong to.
    """
    began = changed = time.monotonic()
    before: dict[str, int] = {}
    while True:
        left = await _left(bootstrap, app_id, topics)
        now = time.monotonic()
        if left != before:
            before, changed = left, now
        if not left or now - changed > within or now - began > _LONGEST * within:
            return left
        await asyncio.sleep(_LOOK_EVERY)


async def _left(bootstrap: Bootstrap, app_id: str, topics: tuple[str, ...]) -> dict[str, int]:
    """A message that waits for a retry counts as handled by its position. One that has waited may have sent
    others just before it was looked for.
    """
    return (
        await unhandled(bootstrap, app_id, topics)
        or await waiting(bootstrap, app_id)
        or await unhandled(bootstrap, app_id, topics)
    )


def settlement(record: Record) -> Settlement:
    """Read a record of the confirmed or cancelled topic."""
    message_id = dict(record.headers)[ID].decode()
    if record.topic == OrderConfirmed.TOPIC:
        return Settlement(
            message_id, _confirmed.decode(record.value or b"", None).order, ExpectedOutcome.CONFIRMED
        )
    cancelled = _cancelled.decode(record.value or b"", None)
    return Settlement(message_id, cancelled.order, cancelled.reason)


async def settlements(bootstrap: Bootstrap) -> list[Settlement]:
    """Every one that there is by now."""
    async with TopicReader(bootstrap, [OrderConfirmed.TOPIC, OrderCancelled.TOPIC]) as reader:
        return [settlement(record) async for record in reader.to_end()]


async def packed(bootstrap: Bootstrap, claims: ClaimChecks | None) -> dict[str, list[tuple[str, str]]]:
    """The files in each order's parcel."""
    found: dict[str, list[tuple[str, str]]] = {}
    async with TopicReader(bootstrap, [DocumentsPacked.TOPIC]) as reader:
        async for record in reader.to_end():
            headers = dict(record.headers)
            by_reference = claims is not None and claim_in(headers) is not None
            data = await claims.check_out(headers) if claims and by_reference else record.value or b""
            parcel = _packed.decode(data, None)
            files = [(each.name, sha256(each.data).hexdigest()) for each in parcel.attachments]
            found.setdefault(parcel.order_id, []).extend(files)
    return found


async def _received(bootstrap: Bootstrap) -> Counter[str]:
    seen = set()
    units: Counter[str] = Counter()
    async with TopicReader(bootstrap, [StockReceived.TOPIC]) as reader:
        async for record in reader.to_end():
            headers = dict(record.headers)
            identity = headers[SOURCE], headers[ID]
            if identity not in seen:
                seen.add(identity)
                receipt = _receipt.decode(record.value or b"", None)
                units[receipt.sku] += receipt.units
    return units


async def _shipped(bootstrap: Bootstrap) -> Counter[str]:
    units: Counter[str] = Counter()
    async with TopicReader(bootstrap, [ShipLine.TOPIC]) as reader:
        async for record in reader.to_end():
            line = _leaving.decode(record.value or b"", None)
            units[line.sku] += line.units
    return units


async def table_of(bootstrap: Bootstrap, changelog: str, codec: AvroCodec[R]) -> dict[str, R]:
    """The rows of a table, by key."""
    rows: dict[str, R] = {}
    async with TopicReader(bootstrap, [changelog]) as reader:
        async for record in reader.to_end():
            key = split_row_key(record.key or b"")[0].decode()
            if record.value is None:
                rows.pop(key, None)
            else:
                rows[key] = decode_row(codec, record.value)
    return rows


async def ledger_of(gateway: str) -> list[Charged | Refunded]:
    """Every operation that the gateway has done."""
    rows: list[Charged | Refunded] = []
    after: int | None = 0
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        while after is not None:
            async with session.get(f"{gateway}/ledger", params={"after": after, "limit": _PAGE}) as answer:
                page = msgspec.json.decode(await answer.read(), type=LedgerPage)
            rows += page.rows
            after = page.next
    return rows
