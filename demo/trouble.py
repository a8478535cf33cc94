"""Faults of the demo's orders, and their due result: pure, from a purchase and nothing else.

Some cards find the gateway unavailable a few times, and must be charged all the same. Beside the orders come
a few undecodable records, and each must become a dead letter for the reason given here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from agents.gateway.cards import unavailable
from agents.messages import Order, OrderPlaced, StockReceived
from demo.purchases import ExpectedOutcome, Purchase, draw, order, outcome
from schemas import latest
from streams.model.codecs import AvroCodec, Schemas
from streams.model.envelope import FINGERPRINT, ID, SOURCE, TYPE
from streams.ports import Outgoing

#: One order in so many has a card for which the gateway is unavailable, up to so many times.
UNAVAILABLE_ONE_IN = 100
MOST_OUTAGES = 5
#: Failures after which a charge is tried again at once; after each further one it is postponed.
_AT_ONCE = 2
#: After one order in so many comes a poisonous record.
POISON_EVERY = 75
#: Who sends poison.
POISON_SOURCE = b"poison"

_schemas = Schemas()
_placed = AvroCodec(OrderPlaced, latest(OrderPlaced.TOPIC), _schemas)
_receipt = AvroCodec(StockReceived, latest(StockReceived.TOPIC), _schemas)


def outages(purchase: Purchase) -> int:
    """How often the gateway turns the order's charge away. Only orders that are to be confirmed, and cost
    something, have such cards.
    """
    row = purchase.row
    if draw(row, "outage", UNAVAILABLE_ONE_IN) or not purchase.cents:
        return 0
    if outcome(purchase) is not ExpectedOutcome.CONFIRMED:
        return 0
    return 1 + draw(row, "outages", MOST_OUTAGES)


def tiers(purchase: Purchase) -> range:
    """The retry tiers that the order's charge goes through when each attempt asks the gateway once."""
    return range(1, 1 + outages(purchase) - _AT_ONCE)


def troubled_order(purchase: Purchase) -> Order:
    """Return the customer's request, maybe with a card that is trouble."""
    times = outages(purchase)
    placed = order(purchase)
    return msgspec.structs.replace(placed, card=unavailable(times)) if times else placed


class PoisonKind(StrEnum):
    """The fault of a poisonous record."""

    CUT_OFF = "cut off"
    NAMELESS = "without id"
    MISADDRESSED = "under the key of another order"
    FOREIGN = "of another type"


_ERRORS = {
    PoisonKind.CUT_OFF: "Undecodable",
    PoisonKind.NAMELESS: "MissingHeader",
    PoisonKind.MISADDRESSED: "KeyMismatch",
    PoisonKind.FOREIGN: "Undecodable",
}


class Poison(NamedTuple):
    """A record that must become a dead letter, whole, once, without having reached a handler.

    Attributes:
        kind: what is wrong with it.
        topic: where it is sent.
        record: key, value and headers.
        error: `dlq-error-type` of its dead letter.
    """

    kind: PoisonKind
    topic: str
    record: Outgoing
    error: str


def poison(purchase: Purchase, every: int = POISON_EVERY) -> Poison | None:
    """What is sent right after the order of this purchase; all kinds take turns. None after most."""
    number, rest = divmod(purchase.row, every)
    return None if rest else spoiled(purchase, list(PoisonKind)[(number - 1) % len(PoisonKind)])


def spoiled(purchase: Purchase, kind: PoisonKind) -> Poison:
    """A poisonous record of this kind. All but the nameless have the key of the purchase's real order, which
    they must not hold up; handling one would charge a stranger, or change stock.
    """
    key, name = purchase.order_id, f"poison-{purchase.row:05d}"
    stranger = msgspec.structs.replace(order(purchase), order_id=name)
    value, writer = _placed.encode(OrderPlaced(order=stranger)), _placed.fingerprint
    own_id, sent_as = [(ID, name.encode())], OrderPlaced.TOPIC
    match kind:
        case PoisonKind.CUT_OFF:
            value = value[: len(value) // 2]
        case PoisonKind.NAMELESS:
            key, own_id = stranger.order_id, []
        case PoisonKind.MISADDRESSED:
            pass
        case PoisonKind.FOREIGN:
            receipt = StockReceived(sku=stranger.lines[0].sku, units=1)
            value, writer, sent_as = _receipt.encode(receipt), _receipt.fingerprint, StockReceived.TOPIC
    headers = [*own_id, (TYPE, sent_as.encode()), (SOURCE, POISON_SOURCE), (FINGERPRINT, writer)]
    return Poison(kind, OrderPlaced.TOPIC, Outgoing(key.encode(), value, headers), _ERRORS[kind])
