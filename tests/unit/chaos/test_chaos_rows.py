"""The checker knows the rows that each order calls for, and says which are others."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import pytest
from good_rows import codec
from good_run import BOUGHT, good

from chaos.evidence.evidence import Evidence
from chaos.judges.findings import rows_as_called_for
from chaos.judges.rows import TABLES
from demo.findings import Finding
from demo.purchases import ExpectedOutcome, Purchase, orchestrated, outcome
from streams.model.codecs import decode_row, encode_row
from streams.model.table import Table
from tables.orders import ORDERS
from tables.payments import PAYMENTS
from tables.reservations import RESERVATION_LINES, RESERVATION_TALLIES, RESERVATIONS
from tables.shipments import SHIPMENTS
from tables.stock import STOCK_RESERVATIONS
from tables.values import Order
from tables.ways import ORDER_WAYS

pytestmark = pytest.mark.promise("chaos", "each finding of the checker goes red when its fault is planted")


def whole(**late: Any) -> Evidence:
    """Of a good run, made once, with rows of its own."""
    evidence = replace(made(**late))
    evidence.rebuilt = replace(evidence.rebuilt, tables={})
    for lane, tables in made(**late).rebuilt.tables.items():
        evidence.rebuilt.tables[lane] = {table: dict(rows) for table, rows in tables.items()}
    return evidence


made = cache(good)


def judged(evidence: Evidence) -> Finding:
    assert evidence.books is not None
    return rows_as_called_for(BOUGHT, evidence, evidence.books)


def found(evidence: Evidence) -> str:
    finding = judged(evidence)
    assert not finding.passed
    return finding.says


def an_order(wanted: ExpectedOutcome, *, by_saga: bool, free: bool = False) -> str:
    def fits(each: Purchase) -> bool:
        return (outcome(each), orchestrated(each), not each.cents) == (wanted, by_saga, free)

    return next(each.order_id for each in BOUGHT if fits(each))


def places(
    evidence: Evidence, table: Table[Any], order_id: str
) -> Iterator[tuple[dict[bytes, bytes], bytes]]:
    for lane in evidence.rebuilt.tables.values():
        rows = lane[table.name]
        yield from ((rows, key) for key in list(rows) if order_id.encode() in key)


def alter(evidence: Evidence, table: Table[Any], order_id: str, **changes: Any) -> None:
    rows, key = next(places(evidence, table, order_id))
    row = decode_row(codec(table), rows[key])
    rows[key] = encode_row(codec(table), msgspec.structs.replace(row, **changes))


def test_every_table_of_the_services_is_looked_at_or_stock() -> None:
    """Stock is looked at by SKU, sagas and participants by their ways, and notes by their number."""
    from chaos.load.notes import with_notes

    by_others = {"stock", "order-sagas", "inventory-steps", "payment-steps", "shipping-steps", "notes"}
    assert {*TABLES} | by_others == with_notes.tables().keys()


@pytest.mark.parametrize("by_saga", [False, True])
@pytest.mark.parametrize(
    ("wanted", "table", "changes"),
    [
        (ExpectedOutcome.CONFIRMED, ORDERS, {"status": "pending"}),
        (ExpectedOutcome.CONFIRMED, ORDERS, {"status": "cancelled", "reason": "card_declined"}),
        (ExpectedOutcome.DECLINED, ORDERS, {"reason": "out_of_stock"}),
        (ExpectedOutcome.CONFIRMED, ORDER_WAYS, {"way": "none"}),
        (ExpectedOutcome.DECLINED, ORDER_WAYS, {"cancelled": True}),
        (ExpectedOutcome.CONFIRMED, PAYMENTS, {"cents": 1}),
        (ExpectedOutcome.CONFIRMED, PAYMENTS, {"status": "refunded"}),
        (ExpectedOutcome.CONFIRMED, PAYMENTS, {"charge_id": "another"}),
        (ExpectedOutcome.NOWHERE, PAYMENTS, {"cents": 1}),
        (ExpectedOutcome.NOWHERE, PAYMENTS, {"status": "captured"}),
        (ExpectedOutcome.DECLINED, PAYMENTS, {"cents": 1}),
        (ExpectedOutcome.DECLINED, PAYMENTS, {"reason": ""}),
        (ExpectedOutcome.CONFIRMED, SHIPMENTS, {"country": "AQ"}),
        (ExpectedOutcome.NOWHERE, SHIPMENTS, {"status": "scheduled"}),
        (ExpectedOutcome.CONFIRMED, RESERVATION_TALLIES, {"status": "reserved"}),
        (ExpectedOutcome.OUT_OF_STOCK, RESERVATION_TALLIES, {"awaited": 1}),
        (ExpectedOutcome.OUT_OF_STOCK, RESERVATION_TALLIES, {"refused": 0}),
        (ExpectedOutcome.CONFIRMED, RESERVATION_LINES, {"status": "released"}),
        (ExpectedOutcome.CONFIRMED, STOCK_RESERVATIONS, {"status": "reserved"}),
        (ExpectedOutcome.DECLINED, STOCK_RESERVATIONS, {"units": 99}),
    ],
)
def test_another_row_is_found(
    wanted: ExpectedOutcome, table: Table[Any], changes: dict[str, Any], *, by_saga: bool
) -> None:
    evidence = whole()
    order_id = an_order(wanted, by_saga=by_saga)
    alter(evidence, table, order_id, **changes)
    assert f"{order_id}: {table.name} " in found(evidence)


def test_another_way_or_content_of_an_order_is_found() -> None:
    evidence = whole()
    alter(evidence, RESERVATIONS, an_order(ExpectedOutcome.CONFIRMED, by_saga=True), commanded=False)
    assert "reservations has {'commanded': False}" in found(evidence)
    evidence = whole()
    other = Order(order_id="o", customer="c", lines=(), total_cents=1, card="", country="")
    alter(evidence, ORDERS, an_order(ExpectedOutcome.CONFIRMED, by_saga=True), order=other)
    assert "orders has {'order': {'order_id': 'o'" in found(evidence)


@pytest.mark.parametrize("table", [ORDERS, PAYMENTS, SHIPMENTS, RESERVATIONS, STOCK_RESERVATIONS])
def test_a_row_that_is_missing_is_found(table: Table[Any]) -> None:
    evidence = whole()
    order_id = an_order(ExpectedOutcome.CONFIRMED, by_saga=False)
    rows, key = next(places(evidence, table, order_id))
    value = rows.pop(key)
    assert f"{order_id}: {table.name} " in found(evidence)
    rows[key] = value
    rows[key.replace(order_id.encode(), b"cdnow-99999")] = value
    assert "of no order (cdnow-99999)" in found(evidence)


def test_a_payment_of_a_refused_order_is_found() -> None:
    evidence, paid_for = whole(), an_order(ExpectedOutcome.CONFIRMED, by_saga=False)
    order_id = an_order(ExpectedOutcome.OUT_OF_STOCK, by_saga=False)
    paid, key = next(places(evidence, PAYMENTS, paid_for))
    paid[key.replace(paid_for.encode(), order_id.encode())] = paid[key]
    assert f"{order_id}: payments has " in found(evidence)


LATE = an_order(ExpectedOutcome.CONFIRMED, by_saga=True)


def late() -> Evidence:
    """That order was cancelled: its payment was late, while the gateway was away."""
    return whole(late=LATE, begins=20.0)


def test_an_order_that_was_late_has_given_all_back() -> None:
    assert judged(late()).passed


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        (ORDERS, {"status": "confirmed"}),
        (ORDERS, {"reason": "card_declined"}),
        (PAYMENTS, {"status": "captured"}),
        (PAYMENTS, {"cents": 1}),
        (RESERVATION_TALLIES, {"status": "shipped"}),
        (RESERVATION_TALLIES, {"awaited": 1}),
        (STOCK_RESERVATIONS, {"status": "shipped"}),
    ],
)
def test_what_an_order_that_was_late_has_kept_is_found(table: Table[Any], changes: dict[str, Any]) -> None:
    evidence = late()
    alter(evidence, table, LATE, **changes)
    assert f"1 kept for late orders ({LATE}: {table.name} " in found(evidence)
