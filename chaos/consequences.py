"""What each message must lead to, exactly once: pure, by the ids that messages carry.

Written down from what the events mean, stock first, and independent of the handlers. Every message names the
one that caused it, so work that was lost or doubled shows as a message too few or too many, and at its place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from agents.messages import (
    DocumentsPacked,
    LineRefused,
    LineReleased,
    LineReserved,
    OrderCancelled,
    OrderConfirmed,
    OrderDocumented,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    ReleaseLine,
    ReserveLine,
    ShipLine,
    ShipmentFailed,
    ShipmentScheduled,
    StockReceived,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from streams.message import Message


class Sent(NamedTuple):
    """A message as it lies in its topic; without id or cause where these are empty."""

    topic: str
    partition: int
    offset: int
    key: str
    message_id: str
    source: str
    cause: str

    def __str__(self) -> str:
        return f"{_name(self.topic)} {self.message_id} of {self.key}"


@dataclass(frozen=True)
class Calls:
    """What a message calls for: one of each tuple, and one of each type for every SKU of its order."""

    one_of: tuple[tuple[type[Message], ...], ...] = ()
    for_each_sku: tuple[type[Message], ...] = ()


NOTHING = Calls()
CALLS: Mapping[type[Message], Calls] = {
    OrderPlaced: Calls(for_each_sku=(ReserveLine,)),
    ReserveLine: Calls(one_of=((LineReserved, LineRefused),)),
    StockReserved: Calls(one_of=((PaymentCaptured, PaymentFailed),)),
    PaymentCaptured: Calls(one_of=((ShipmentScheduled, ShipmentFailed),)),
    ShipmentScheduled: Calls(one_of=((OrderConfirmed,),), for_each_sku=(ShipLine,)),
    StockReservationFailed: Calls(one_of=((OrderCancelled,),)),
    PaymentFailed: Calls(one_of=((OrderCancelled,),), for_each_sku=(ReleaseLine,)),
    ShipmentFailed: Calls(one_of=((OrderCancelled,), (PaymentRefunded,)), for_each_sku=(ReleaseLine,)),
    ReleaseLine: Calls(one_of=((LineReleased,),)),
    OrderDocumented: Calls(one_of=((DocumentsPacked,),)),
    DocumentsPacked: NOTHING,
    ShipLine: NOTHING,
    StockReceived: NOTHING,
    PaymentRefunded: NOTHING,
    StockReleased: NOTHING,
    OrderConfirmed: NOTHING,
    OrderCancelled: NOTHING,
}
#: Answers that are gathered by order: whichever is handled last leads on, the others to nothing.
GATHERED: frozenset[type[Message]] = frozenset({LineReserved, LineRefused, LineReleased})
#: What clients write, and may repeat.
OUTSIDE: frozenset[type[Message]] = frozenset({OrderPlaced, StockReceived})

MESSAGES: tuple[type[Message], ...] = (*CALLS, *GATHERED)
#: What version 2 of the application handles beside: it is only counted.
NOTES_TOPIC = "chaos.note.made.v1"
OUTSIDE_TOPICS = frozenset({NOTES_TOPIC, *(kind.TOPIC for kind in OUTSIDE)})
_NAMES = {kind.TOPIC: kind.__name__ for kind in MESSAGES}

Skus = Mapping[str, Set[str]]


@dataclass(frozen=True)
class Consequences:
    """How many were looked at, and what is wrong with them, each case in words; `amiss` are the ids of those
    that led to too little or too much.
    """

    looked_at: int
    lacking: tuple[str, ...]
    too_many: tuple[str, ...]
    without_cause: tuple[str, ...]
    amiss: frozenset[str] = frozenset()


def consequences(messages: Sequence[Sent], skus: Skus, with_files: Set[str] = frozenset()) -> Consequences:
    """Hold every message against what it calls for. `skus` are those of each order, by its id; `with_files`
    are the ids of orders that came with files.
    """
    distinct = {(each.topic, each.source, each.message_id): each for each in messages}
    found = _Found(messages)
    differences = [*_of_each(distinct.values(), found, skus, with_files), *_of_answers(found, skus)]
    known = {each.message_id for each in messages}
    orphans = [
        f"{each} is caused by {each.cause or 'nothing'}"
        for each in messages
        if each.topic not in OUTSIDE_TOPICS and each.cause not in known
    ]
    lacking = tuple(f"{each.what} lacks {_said(each.less)}" for each in differences if each.less)
    too_many = tuple(f"{each.what} has {_said(each.more)} too many" for each in differences if each.more)
    amiss = frozenset(message_id for each in differences for message_id in each.ids)
    return Consequences(len(distinct), lacking, too_many, tuple(orphans), amiss)


#: A message's topic, and the key where it tells SKUs apart.
Mark = tuple[str, str]


class Difference(NamedTuple):
    """What messages lack or have too many of; their ids."""

    what: str
    less: Counter[Mark]
    more: Counter[Mark]
    ids: tuple[str, ...]


class _Found:
    """What was found: by the message that caused it, and answers by order."""

    def __init__(self, messages: Iterable[Sent]) -> None:
        self.caused: dict[str, list[Sent]] = defaultdict(list)
        self.answers: dict[tuple[str, str], list[Sent]] = defaultdict(list)
        self.sku_of: dict[str, str] = {}
        for each in messages:
            if each.topic not in OUTSIDE_TOPICS:
                self.caused[each.cause].append(each)
            if each.topic in _BY_ORDER:
                self.answers[_BY_ORDER[each.topic], each.key].append(each)
            if each.topic in _BY_SKU:
                self.sku_of[each.message_id] = each.key


_RESERVING, _RELEASING = "reserving", "releasing"
_BY_ORDER = {LineReserved.TOPIC: _RESERVING, LineRefused.TOPIC: _RESERVING, LineReleased.TOPIC: _RELEASING}
_BY_SKU = frozenset({ReserveLine.TOPIC, ReleaseLine.TOPIC, ShipLine.TOPIC})
_GATHERED_TOPICS = frozenset(_BY_ORDER)
_CALLS = {NOTES_TOPIC: NOTHING, **{kind.TOPIC: calls for kind, calls in CALLS.items()}}


def _of_each(
    messages: Iterable[Sent], found: _Found, skus: Skus, with_files: Set[str]
) -> Iterator[Difference]:
    for each in messages:
        if each.topic in _GATHERED_TOPICS:
            continue
        calls = _CALLS[each.topic]
        caused = found.caused.get(each.message_id, ())
        marks = Counter(map(_mark, caused))
        wanted = Counter(_chosen(calls, marks))
        wanted.update((kind.TOPIC, sku) for kind in calls.for_each_sku for sku in skus.get(each.key, ()))
        if each.topic == OrderPlaced.TOPIC and each.key in with_files:
            wanted[OrderDocumented.TOPIC, ""] += 1
        if marks != wanted:
            yield Difference(str(each), wanted - marks, marks - wanted, (each.message_id,))


def _chosen(calls: Calls, marks: Counter[Mark]) -> Iterator[Mark]:
    """Of alternatives the one that is there, the first when none is."""
    for kinds in calls.one_of:
        yield next(((kind.TOPIC, "") for kind in kinds if (kind.TOPIC, "") in marks), (kinds[0].TOPIC, ""))


def _of_answers(found: _Found, skus: Skus) -> Iterator[Difference]:
    """One of an order's answers leads on, once all are there."""
    for (what, order_id), answers in found.answers.items():
        caused = [
            (each.message_id, _mark(effect)) for each in answers for effect in found.caused[each.message_id]
        ]
        marks = Counter(mark for _, mark in caused)
        wanted: Counter[Mark] = Counter()
        if what == _RELEASING:
            wanted[StockReleased.TOPIC, ""] = 1
        elif what == _RESERVING and len(answers) >= len(skus.get(order_id, ())):
            wanted = _after_reserving(answers, found)
        name, ids = f"{what} {order_id}", tuple(each.message_id for each in answers)
        if marks != wanted:
            yield Difference(name, wanted - marks, marks - wanted, ids)
        elif len({cause for cause, _ in caused}) > 1:
            yield Difference(f"{name}, led on by more than one answer,", Counter(), marks, ids)


def _after_reserving(answers: Sequence[Sent], found: _Found) -> Counter[Mark]:
    if all(each.topic == LineReserved.TOPIC for each in answers):
        return Counter({(StockReserved.TOPIC, ""): 1})
    reserved = (each for each in answers if each.topic == LineReserved.TOPIC)
    wanted = Counter((ReleaseLine.TOPIC, found.sku_of.get(each.cause, "?")) for each in reserved)
    wanted[StockReservationFailed.TOPIC, ""] = 1
    return wanted


def _mark(message: Sent) -> Mark:
    return message.topic, message.key if message.topic in _BY_SKU else ""


def _name(topic: str) -> str:
    return _NAMES.get(topic, topic)


def _said(marks: Counter[Mark]) -> str:
    return " and ".join(f"{_name(topic)} {key}".rstrip() for topic, key in sorted(marks.elements()))
