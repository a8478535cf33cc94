"""What each message must lead to, exactly once: pure, by the ids that messages carry.

Written down from what the messages mean, stock first and by saga, and independent of the handlers. Every
message names the one that caused it, so work that was lost or doubled shows as a message too few or too many,
and at its place. What a saga goes by is more than ids tell: `SagaCalls` says it (`chaos.judges.sagas`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from agents.commands import OrderSagaReply, OrderSubmitted, ReleaseStock, ReserveStock
from agents.messages import (
    HandleLines,
    LineRefused,
    LineReleased,
    LineReserved,
    OrderDocumented,
    OrderPlaced,
    ReleaseLine,
    ReservationSettled,
    ReserveLine,
    ShipLine,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from chaos.evidence.calls import ANSWER, BY_TOPIC, NAMES, NOTHING, OUTSIDE_TOPICS, Calls


class SentMessage(NamedTuple):
    """A message as it lies in its topic; without id or cause where these are empty. `time` is when it was
    written, in seconds since the epoch.
    """

    topic: str
    partition: int
    offset: int
    key: str
    message_id: str
    source: str
    cause: str
    time: float = 0.0

    def __str__(self) -> str:
        return f"{_name(self.topic)} {self.message_id} of {self.key}"


@dataclass(frozen=True)
class SagaCalls:
    """What is to be known of sagas beside the ids of messages.

    Attributes:
        leads_on: ids of the replies that a saga has gone on by; the others lead to nothing.
        unanswered: ids of messages whose answer may have come too late to have an effect.
        questions: ids of those after commands: they are answered, or the command is.
    """

    leads_on: Set[str] = frozenset()
    unanswered: Set[str] = frozenset()
    questions: Set[str] = frozenset()


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


def consequences(
    messages: Sequence[SentMessage],
    skus: Skus,
    with_files: Set[str] = frozenset(),
    sagas: SagaCalls | None = None,
) -> Consequences:
    """Hold every message against what it calls for. `skus` are those of each order, by its id; `with_files`
    are the ids of orders that came with files.
    """
    distinct = {(each.topic, each.source, each.message_id): each for each in messages}
    found = _Links(messages)
    differences = [
        *_of_each(distinct.values(), found, skus, with_files, sagas or SagaCalls()),
        *_of_answers(found, skus),
        *_of_releases(found, skus),
    ]
    known = {each.message_id for each in messages}
    orphans = [
        f"{each} is caused by {each.cause or 'nothing'}"
        for each in messages
        if each.topic not in OUTSIDE_TOPICS and each.cause not in known
    ]
    lacking = tuple(f"{each.what} lacks {_listed(each.less)}" for each in differences if each.less)
    too_many = tuple(f"{each.what} has {_listed(each.more)} too many" for each in differences if each.more)
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


class _Links:
    """What was found: by the message that caused it, and answers by order.

    Attributes:
        submitted: orders that a saga sees to.
        called_back: of these, the SKUs that were released by command before the order had ended.
    """

    def __init__(self, messages: Sequence[SentMessage]) -> None:
        self.caused: dict[str, list[SentMessage]] = defaultdict(list)
        self.answers: dict[tuple[str, str], list[SentMessage]] = defaultdict(list)
        self.sku_of: dict[str, str] = {}
        self.submitted = {each.key for each in messages if each.topic == OrderSubmitted.TOPIC}
        self.called_back: dict[str, set[str]] = defaultdict(set)
        self.topic_of = {each.message_id: each.topic for each in messages}
        releasing = {each.message_id: each.key for each in messages if each.topic == ReleaseStock.TOPIC}
        # The commands of a wide order are sent a part at a time, and are still those of what called for them.
        parts = {each.message_id: each.cause for each in messages if each.topic == HandleLines.TOPIC}
        for one in messages:
            if one.topic == HandleLines.TOPIC:
                continue
            each = one._replace(cause=parts.get(one.cause, one.cause))
            # A saga's deadlines are replies too, caused by the saga's last message: they are no answers.
            rings = each.topic == OrderSagaReply.TOPIC and self.topic_of.get(each.cause) in _SAGA_INPUT
            if each.topic not in OUTSIDE_TOPICS and not rings:
                self.caused[each.cause].append(each)
            if each.topic in _BY_ORDER:
                self.answers[_BY_ORDER[each.topic], each.key].append(each)
            if each.topic in _BY_SKU:
                self.sku_of[each.message_id] = each.key
            if each.topic == ReleaseLine.TOPIC and each.cause in releasing:
                self.called_back[releasing[each.cause]].add(each.key)


#: The topics that sagas handle.
_SAGA_INPUT = frozenset({OrderSubmitted.TOPIC, OrderSagaReply.TOPIC})
_RESERVING, _RELEASING = "reserving", "releasing"
_BY_ORDER = {LineReserved.TOPIC: _RESERVING, LineRefused.TOPIC: _RESERVING, LineReleased.TOPIC: _RELEASING}
_BY_SKU = frozenset({ReserveLine.TOPIC, ReleaseLine.TOPIC, ShipLine.TOPIC})
_GATHERED_TOPICS = frozenset(_BY_ORDER)
_WITH_FILES = frozenset({OrderPlaced.TOPIC, OrderSubmitted.TOPIC})


def _of_each(
    messages: Iterable[SentMessage], found: _Links, skus: Skus, with_files: Set[str], sagas: SagaCalls
) -> Iterator[Difference]:
    for each in messages:
        if each.topic in _GATHERED_TOPICS:
            continue
        marks = Counter(map(_mark, found.caused.get(each.message_id, ())))
        calls = _calls(each, marks, found, sagas)
        wanted = Counter(_chosen(calls, marks))
        of_whom = found.called_back if each.topic == ReleaseStock.TOPIC else skus
        wanted.update((kind.TOPIC, sku) for kind in calls.for_each_sku for sku in of_whom.get(each.key, ()))
        if each.topic in _WITH_FILES and each.key in with_files:
            wanted[OrderDocumented.TOPIC, ""] += 1
        if marks != wanted:
            yield Difference(str(each), wanted - marks, marks - wanted, (each.message_id,))


def _calls(each: SentMessage, marks: Counter[Mark], found: _Links, sagas: SagaCalls) -> Calls:
    """What a message calls for, as things went."""
    if each.topic == OrderSagaReply.TOPIC and each.message_id not in sagas.leads_on:
        return NOTHING
    if each.message_id in sagas.questions:
        return ANSWER if marks else NOTHING
    if not marks and each.message_id in sagas.unanswered:
        return NOTHING
    if each.topic == ReserveStock.TOPIC and (OrderSagaReply.TOPIC, "") in marks:
        return ANSWER  # it came too late, or could not be done
    if each.topic == ReleaseStock.TOPIC and any(topic == ReleaseLine.TOPIC for topic, _ in marks):
        return Calls(for_each_sku=(ReleaseLine,))
    if each.topic == ReservationSettled.TOPIC and found.topic_of.get(each.cause) == LineReleased.TOPIC:
        return ANSWER if found.called_back.get(each.key) else NOTHING  # which was refused by itself
    return BY_TOPIC[each.topic]


def _chosen(calls: Calls, marks: Counter[Mark]) -> Iterator[Mark]:
    """Of alternatives the one that is there, the first when none is."""
    for kinds in calls.one_of:
        yield next(((kind.TOPIC, "") for kind in kinds if (kind.TOPIC, "") in marks), (kinds[0].TOPIC, ""))


def _of_answers(found: _Links, skus: Skus) -> Iterator[Difference]:
    """One of an order's answers leads on, once all are there."""
    for (what, order_id), answers in found.answers.items():
        caused = [
            (each.message_id, _mark(effect)) for each in answers for effect in found.caused[each.message_id]
        ]
        marks = Counter(mark for _, mark in caused)
        wanted: Counter[Mark] = Counter()
        saga, all_there = order_id in found.submitted, len(answers) >= len(skus.get(order_id, ()))
        if what == _RELEASING:
            wanted[(ReservationSettled if saga else StockReleased).TOPIC, ""] = 1
        elif all_there:
            wanted = _after_reserving(answers, found, saga=saga)
        name, ids = f"{what} {order_id}", tuple(each.message_id for each in answers)
        if marks != wanted:
            yield Difference(name, wanted - marks, marks - wanted, ids)
        elif len({cause for cause, _ in caused}) > 1:
            yield Difference(f"{name}, led on by more than one answer,", Counter(), marks, ids)


def _after_reserving(answers: Sequence[SentMessage], found: _Links, *, saga: bool) -> Counter[Mark]:
    if all(each.topic == LineReserved.TOPIC for each in answers):
        return Counter({((ReservationSettled if saga else StockReserved).TOPIC, ""): 1})
    reserved = (each for each in answers if each.topic == LineReserved.TOPIC)
    wanted = Counter((ReleaseLine.TOPIC, found.sku_of.get(each.cause, "?")) for each in reserved)
    wanted[(ReservationSettled if saga else StockReservationFailed).TOPIC, ""] = 1
    return wanted


def _of_releases(found: _Links, skus: Skus) -> Iterator[Difference]:
    """What is called back is every SKU that was not refused before."""
    for order_id, released in found.called_back.items():
        answers = found.answers.get((_RESERVING, order_id), ())
        refused = {found.sku_of.get(each.cause) for each in answers if each.topic == LineRefused.TOPIC}
        less = skus.get(order_id, set()) - released - refused
        if more := released - skus.get(order_id, set()):
            yield Difference(f"release of {order_id}", Counter(), _lines(more), ())
        if less:
            yield Difference(f"release of {order_id}", _lines(less), Counter(), ())


def _lines(skus: Iterable[str]) -> Counter[Mark]:
    return Counter((ReleaseLine.TOPIC, sku) for sku in skus)


def _mark(message: SentMessage) -> Mark:
    return message.topic, message.key if message.topic in _BY_SKU else ""


def _name(topic: str) -> str:
    return NAMES.get(topic, topic)


def _listed(marks: Counter[Mark]) -> str:
    return " and ".join(f"{_name(topic)} {key}".rstrip() for topic, key in sorted(marks.elements()))
