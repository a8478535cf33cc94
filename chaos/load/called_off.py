"""Orders that clients call off, beside those of the file, and what must become of them: pure.

Whether a cancellation comes in time is not known beforehand. So these orders have ids and a SKU of their
own: they are left out where everything is held against what the file calls for, and judged by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from agents.cancellation import CancellationRefused, RequestCancellation, StopShipment
from agents.commands import OrderSubmitted, ReserveStock
from agents.gateway.wire import Charged, Refunded
from agents.messages import OrderLine, OrderPlaced, PaymentCaptured, StockReceived, StockReserved
from chaos.evidence.saga_records import SagaRecords
from demo.findings import Finding, finding
from demo.purchases import ExpectedOutcome, draw, order

if TYPE_CHECKING:
    from agents.messages import Order
    from chaos.evidence.consequences import SentMessage
    from chaos.evidence.evidence import Evidence
    from chaos.rig.records import Way
    from demo import evidence as books
    from demo.purchases import Purchase

V = TypeVar("V")

#: What their ids begin with, and their SKU, of which there is always enough.
PREFIX = "off-"
SKU, UNITS = f"{PREFIX}cd", 10**9
SUPPLY = StockReceived(sku=SKU, units=UNITS)
#: How they come.
_WAYS: tuple[tuple[type[OrderPlaced] | type[OrderSubmitted], ...], ...] = (
    (OrderPlaced,),
    (OrderSubmitted,),
    (OrderPlaced, OrderSubmitted),
    (OrderSubmitted, OrderPlaced),
)
#: After how many other orders they come, and are called off.
_COMES, _CALLED_OFF = (0, 0, 0, 15), (0, 0, 1, 5, 15, 200)
#: What only happens to an order of one way.
_CHOREOGRAPHED = frozenset({StockReserved.TOPIC, PaymentCaptured.TOPIC, StopShipment.TOPIC})
_ORCHESTRATED = ReserveStock.TOPIC


class Coming(NamedTuple):
    """A message of such an order, its id, and after how many other orders it comes.

    Attributes:
        way: it goes over HTTP, to the orders API whose orders go this way, if there is one; None: to Kafka.
            The API lets an order begin one way only.
    """

    after: int
    message: OrderPlaced | OrderSubmitted | RequestCancellation
    message_id: str
    way: Way | None = None


def is_apart(key: str) -> bool:
    """Whether it is the key of such an order, or its SKU."""
    return key.startswith(PREFIX)


def order_beside(purchase: Purchase, share: float) -> Order | None:
    """The order that is called off beside a purchase of the file, so often; None: there is none."""
    if draw(purchase.row, "called off", 1_000_000) >= share * 1_000_000:
        return None
    like = order(purchase)
    line = OrderLine(sku=SKU, units=max(1, purchase.units))
    return msgspec.structs.replace(like, order_id=f"{PREFIX}{like.order_id}", lines=(line,))


def comings(purchase: Purchase, share: float) -> Iterator[Coming]:
    """All that a client sends of it."""
    if (made := order_beside(purchase, share)) is None:
        return
    row = purchase.row
    after = _COMES[draw(row, "comes after", len(_COMES))]
    kinds = _WAYS[draw(row, "ways", len(_WAYS))]
    way: Way | None = None
    if len(kinds) == 1:
        way = "placed" if kinds[0] is OrderPlaced else "submitted"
    for kind in kinds:
        yield Coming(after, kind(order=made), f"placed-{made.order_id}", way)
    after = _CALLED_OFF[draw(row, "called off after", len(_CALLED_OFF))]
    yield Coming(after, RequestCancellation(order_id=made.order_id), f"cancel-{made.order_id}", way)


def without_called_off(found: Evidence) -> Evidence:
    """What is held against the file."""
    sagas = SagaRecords()
    sagas.by_order.update(_others(found.sagas.by_order))
    return replace(
        found,
        books=None if found.books is None else _books_without(found.books),
        messages=[each for each in found.messages if not is_apart(each.key)],
        sagas=sagas,
    )


def _books_without(found: books.DemoEvidence) -> books.DemoEvidence:
    return replace(
        found,
        settlements=[each for each in found.settlements if not is_apart(each.order.order_id)],
        ledger=[each for each in found.ledger if not is_apart(_order_of(each))],
        received=Counter(_others(found.received)),
        shipped=Counter(_others(found.shipped)),
        stock=_others(found.stock),
        sagas=_others(found.sagas),
    )


def _others(by_key: Mapping[str, V]) -> dict[str, V]:
    return {key: value for key, value in by_key.items() if not is_apart(key)}


def judge_called_off(
    purchases: Sequence[Purchase],
    share: float,
    found: books.DemoEvidence,
    messages: Iterable[SentMessage],
    nowhere: Set[str] = frozenset(),
    over_http: Set[str] = frozenset(),
) -> Finding:
    """Each ends once, but for those that got `nowhere`: one request, without an answer. What is
    not confirmed keeps neither cents nor pieces. A client gets a refusal only if it was too late. Of two ways
    one is gone. Some that were called off `over_http` never got to Kafka: the API refused them.
    """
    beside = (order_beside(each, share) for each in purchases)
    made = {e.order_id: e for e in beside if e is not None and e.order_id not in nowhere}
    ends = {each.order.order_id: each.outcome for each in found.settlements if is_apart(each.order.order_id)}
    times = Counter(each.order.order_id for each in found.settlements if is_apart(each.order.order_id))
    confirmed = {order_id for order_id, end in ends.items() if end == ExpectedOutcome.CONFIRMED}
    topics: dict[str, set[str]] = {order_id: set() for order_id in made}
    for each in messages:
        if each.key in topics:
            topics[each.key].add(each.topic)
    wrong = {
        "not settled once": sorted(order_id for order_id in made if times[order_id] != 1),
        "settled and never made": sorted(times.keys() - made.keys()),
        "too late without a refusal": _those(
            topics,
            lambda o, has: (
                o in confirmed and _REFUSED not in has and (_REQUESTED in has or o not in over_http)
            ),
        ),
        "refused and not confirmed": _those(topics, lambda o, has: o not in confirmed and _REFUSED in has),
        "gone both ways": _those(topics, lambda _, has: _ORCHESTRATED in has and bool(has & _CHOREOGRAPHED)),
        **_money(made, confirmed, found.ledger),
        "pieces that are missing": _pieces(made, confirmed, found),
    }
    kinds = Counter(ends.values())
    says = f"{len(made):,} orders: " + (
        ", ".join(f"{n:,} {kind}" for kind, n in kinds.most_common()) or "none"
    )
    return finding("every order that was called off ended once, undone or too late", wrong, says)


_REQUESTED, _REFUSED = RequestCancellation.TOPIC, CancellationRefused.TOPIC


def _those(topics: Mapping[str, set[str]], wrong: Callable[[str, set[str]], bool]) -> list[str]:
    return sorted(order_id for order_id, has in topics.items() if wrong(order_id, has))


def _money(
    made: Mapping[str, Order], confirmed: set[str], ledger: Iterable[Charged | Refunded]
) -> dict[str, list[str]]:
    kept, moves = Counter[str](), Counter[tuple[str, str]]()
    for row in ledger:
        if is_apart(order_id := _order_of(row)) and (isinstance(row, Refunded) or row.status == "captured"):
            kept[order_id] += -row.cents if isinstance(row, Refunded) else row.cents
            moves[order_id, "refund" if isinstance(row, Refunded) else "charge"] += 1
    due = {order_id: each.total_cents if order_id in confirmed else 0 for order_id, each in made.items()}
    return {
        "left with another sum than due": [
            f"{order_id} with {kept[order_id]}, not {due.get(order_id, 0)}"
            for order_id in sorted(kept.keys() | due.keys())
            if kept[order_id] != due.get(order_id, 0)
        ],
        "with money moved twice": [f"{order_id}: {what}" for (order_id, what), n in moves.items() if n > 1],
    }


def _pieces(made: Mapping[str, Order], confirmed: set[str], found: books.DemoEvidence) -> list[str]:
    left = sum(line.units for order_id in confirmed & made.keys() for line in made[order_id].lines)
    row = found.stock.get(SKU)
    has = (0, 0, 0, 0) if row is None else (row.received, row.on_hand, row.reserved, row.shipped)
    wanted = (UNITS, UNITS - left, 0, left) if made or row is not None else has
    return [] if has == wanted else [f"{SKU} has {has}, not {wanted}"]


def _order_of(row: Charged | Refunded) -> str:
    operation = row.charge_operation if isinstance(row, Refunded) else row.operation
    return operation.partition(":")[2]
