"""Whether the rows of every order are what the order calls for: pure, from the orders as they were placed.

That rows agree with their changelog says nothing of what is in them: a handler that writes the wrong sum
writes it to both.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agents.gateway.cards import ACCEPTED
from agents.gateway.wire import Charged
from agents.messages import Order
from chaos.evidence.decoding import decoder, rows_in
from chaos.evidence.stores import Rows
from demo.findings import Finding, finding

Row = Mapping[str, Any]
_ORDERS, _WAYS, _PAYMENTS, _SHIPMENTS = "orders", "order-ways", "payments", "shipments"
_RESERVATIONS, _TALLIES, _LINES, _HOLDS = (
    "reservations",
    "reservation-tallies",
    "reservation-lines",
    "stock-reservations",
)
_BY_ORDER = (_ORDERS, _WAYS, _PAYMENTS, _SHIPMENTS, _RESERVATIONS, _TALLIES)
TABLES = (*_BY_ORDER, _LINES, _HOLDS)
_DECODERS = {table: decoder(table) for table in TABLES}
#: What is not looked at: when things happened, and in which order those did that may overtake each other.
_LEFT_OUT = {"history"}


@dataclass
class OrderRows:
    """The rows of one order, by table; for each SKU its answer, and how many pieces are held and how."""

    rows: dict[str, Row] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    holds: dict[str, tuple[int, str]] = field(default_factory=dict)

    def differences(self, wanted: OrderRows) -> Iterator[str]:
        """In which it is not what is wanted."""
        for table in sorted(self.rows.keys() | wanted.rows.keys()):
            found, row = self.rows.get(table), wanted.rows.get(table)
            if found != row:
                yield f"{table} has {_told(found, row)}, not {_told(row, found)}"
        for table, has, asks in ((_LINES, self.lines, wanted.lines), (_HOLDS, self.holds, wanted.holds)):
            for sku in sorted(key for key in has.keys() | asks.keys() if has.get(key) != asks.get(key)):
                yield f"{table} of {sku} has {has.get(sku)}, not {asks.get(sku)}"


def held_in(tables: Iterable[Mapping[str, Rows]]) -> dict[str, OrderRows]:
    """The rows of every order in the state of every lane, by its id."""
    lanes = list(tables)
    found: dict[str, OrderRows] = defaultdict(OrderRows)
    for table in _BY_ORDER:
        for order_id, _, row in rows_in(lanes, table, _DECODERS[table]):
            found[order_id].rows[table] = {name: row[name] for name in row.keys() - _LEFT_OUT}
    for order_id, sku, row in rows_in(lanes, _LINES, _DECODERS[_LINES]):
        found[order_id].lines[sku] = row["status"]
    for sku, order_id, row in rows_in(lanes, _HOLDS, _DECODERS[_HOLDS]):
        found[order_id].holds[sku] = row["units"], row["status"]
    return dict(found)


def wanted_for(order: Order, received: Mapping[str, int], charge_id: str, *, by_saga: bool) -> OrderRows:
    """The rows of an order that went as it calls for."""
    outcome = outcome_of(order, received)
    status = CONFIRMED if outcome == CONFIRMED else "cancelled"
    tracked = _plain(order)
    way = {"way": "submitted" if by_saga else "placed", "cancelled": False}
    if outcome in REFUSALS:
        refused = {"order": {**tracked, "lines": []}, "status": status, "reason": outcome}
        return OrderRows({_ORDERS: refused, _WAYS: way})
    reason = "" if outcome == CONFIRMED else outcome
    wanted = OrderRows({_ORDERS: {"order": tracked, "status": status, "reason": reason}, _WAYS: way})
    wanted.rows[_RESERVATIONS] = {"order": tracked, "commanded": by_saga}
    if (payment := _payment(order, outcome, charge_id)) is not None:
        wanted.rows[_PAYMENTS] = payment
    if outcome in (CONFIRMED, NOWHERE):
        shipment = "scheduled" if outcome == CONFIRMED else "refused"
        wanted.rows[_SHIPMENTS] = {"status": shipment, "country": order.country, "reason": reason}
    _stock(wanted, order, outcome, received)
    return wanted


def _plain(order: Order) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(order)
    return {**fields, "lines": list(fields["lines"])}


def _payment(order: Order, outcome: str, charge_id: str) -> Row | None:
    status = {CONFIRMED: "captured", DECLINED: "failed", NOWHERE: "refunded"}.get(outcome)
    if status is None:
        return None
    cents = 0 if outcome == DECLINED else order.total_cents
    reason = outcome if outcome == DECLINED else ""
    return {"status": status, "cents": cents, "charge_id": charge_id, "reason": reason}


def _stock(wanted: OrderRows, order: Order, outcome: str, received: Mapping[str, int]) -> None:
    units = units_of(order)
    short = {sku for sku in units if units[sku] > received.get(sku, 0)} if outcome == OUT_OF_STOCK else set()
    if outcome == CONFIRMED:
        tally, line, hold = "shipped", "reserved", "shipped"
    else:  # what nothing was set aside of has nothing to be given back
        tally, line, hold = "refused" if len(short) == len(units) else "released", "released", "released"
    counts = {"skus": len(units), "awaited": 0, "refused": len(short)}
    wanted.rows[_TALLIES] = {"status": tally, **counts}
    for sku, pieces in units.items():
        wanted.lines[sku] = "refused" if sku in short else line
        wanted.holds[sku] = pieces, "refused" if sku in short else hold


def kept_by(held: OrderRows, order: Order, reason: str) -> Iterator[str]:
    """What an order that was cancelled for lateness has too much, in words."""
    tracked = held.rows.get(_ORDERS, {})
    wanted = {"order": _plain(order), "status": "cancelled", "reason": reason}
    if tracked != wanted:
        yield f"{_ORDERS} has {_told(tracked, wanted)}, not {_told(wanted, tracked)}"
    payment = held.rows.get(_PAYMENTS, {"status": "cancelled", "cents": 0})
    due = {"refunded": order.total_cents, "cancelled": 0, "failed": 0}
    if due.get(payment["status"]) != payment["cents"]:
        yield f"{_PAYMENTS} has {payment['status']} with {payment['cents']} cents"
    if (shipment := held.rows.get(_SHIPMENTS, {"status": "refused"}))["status"] != "refused":
        yield f"{_SHIPMENTS} has {shipment['status']}"
    tally = held.rows.get(_TALLIES, {"status": "released", "awaited": 0})
    if tally["status"] not in ("released", "refused") or tally["awaited"]:
        yield f"{_TALLIES} has {tally['status']}, awaiting {tally['awaited']}"
    for sku, (units, status) in held.holds.items():
        if status not in ("released", "refused"):
            yield f"{_HOLDS} of {sku} has {units} {status}"


def judge_rows(
    orders: Sequence[Order],
    held: Mapping[str, OrderRows],
    received: Mapping[str, int],
    charges: Mapping[str, Charged],
    *,
    by_saga: Iterable[str],
    late: Mapping[str, str],
) -> Finding:
    """Hold the rows against the orders that were placed.

    Args:
        orders: as they were placed.
        held: what was found, by order id.
        received: pieces of each SKU that came in.
        charges: the gateway's, by order id.
        by_saga: ids of the orders that sagas see to.
        late: why orders were cancelled that a step was late for, by id.
    """
    wrong: dict[str, list[str]] = defaultdict(list)
    orchestrated = set(by_saga)
    for order in orders:
        found = held.get(order.order_id, OrderRows())
        if (reason := late.get(order.order_id)) is not None:
            wrong["kept for late orders"] += [f"{order.order_id}: {e}" for e in kept_by(found, order, reason)]
            continue
        charge = charges.get(order.order_id)
        wanted = wanted_for(
            order,
            received,
            charge.charge_id if charge is not None else "",
            by_saga=order.order_id in orchestrated,
        )
        wrong["other than the order calls for"] += [
            f"{order.order_id}: {each}" for each in found.differences(wanted)
        ]
    wrong["of no order"] = sorted(held.keys() - {order.order_id for order in orders})
    rows = sum(len(each.rows) + len(each.lines) + len(each.holds) for each in held.values())
    return finding("every row as its order calls for", wrong, f"{rows:,} rows of {len(held):,} orders")


def _told(row: Row | None, other: Row | None) -> str:
    """What the one has that the other has not."""
    if row is None:
        return "none"
    return str({name: value for name, value in row.items() if (other or {}).get(name) != value})


CONFIRMED = "confirmed"
OUT_OF_STOCK, DECLINED, NOWHERE = "out_of_stock", "card_declined", "unsupported_destination"
#: Why an order is cancelled before anybody has done anything for it.
REFUSALS = frozenset({"no_lines", "too_many_lines", "order_too_large"})
_MOST_LINES, _MOST_BYTES = 10_000, 500_000
#: Countries without delivery, of those that customers name.
_NOWHERE = frozenset({"AQ"})


def outcome_of(order: Order, received: Mapping[str, int]) -> str:
    """`confirmed`, or why it is cancelled; of several reasons the one that comes first on its way, which asks
    the stock, then the card, then the shipment. `received` are the pieces of each SKU that ever came in; of
    an unknown one there are none.
    """
    if not order.lines:
        return "no_lines"
    if len(order.lines) > _MOST_LINES:
        return "too_many_lines"
    if len(msgspec.json.encode(order)) > _MOST_BYTES:
        return "order_too_large"
    if any(units > received.get(sku, 0) for sku, units in units_of(order).items()):
        return OUT_OF_STOCK
    if order.total_cents and order.card != ACCEPTED:
        return DECLINED
    return NOWHERE if order.country in _NOWHERE else CONFIRMED


def units_of(order: Order) -> Counter[str]:
    """The pieces of each SKU on all lines of the order."""
    units: Counter[str] = Counter()
    for line in order.lines:
        units[line.sku] += line.units
    return units
