from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.gateway.cards import ACCEPTED, DECLINED, behaviour
from agents.shipping.model import ships_to
from demo.purchases import (
    ORDINARY,
    ROWS,
    SHORT,
    SOLD_OUT,
    SPARE,
    ExpectedOutcome,
    Purchase,
    order,
    outcome,
    purchases,
    receipts,
    repeated,
    units_by_sku,
)

ALL = purchases()
a_purchase = st.builds(
    Purchase,
    row=st.integers(1, ROWS),
    customer=st.just("00001"),
    units=st.integers(1, 99),
    cents=st.integers(0, 200_000),
)


def test_the_file_is_the_published_one() -> None:
    assert len(ALL) == ROWS == 69_659
    assert sum(purchase.units for purchase in ALL) == 167_881
    assert sum(purchase.cents for purchase in ALL) == 250_031_563
    assert sum(purchase.cents == 0 for purchase in ALL) == 80
    assert len({purchase.customer for purchase in ALL}) == 23_570
    assert len({purchase.order_id for purchase in ALL}) == ROWS


def test_the_first_rows_are_the_same_however_many_are_read() -> None:
    assert purchases(50) == ALL[:50]


def test_a_further_lap_orders_the_same_under_other_ids() -> None:
    laps = list(repeated(2))
    assert len({purchase.order_id for purchase in laps}) == 2 * ROWS
    assert laps[:ROWS] == ALL
    again = order(laps[ROWS])
    assert msgspec.structs.replace(again, order_id=ALL[0].order_id) == order(ALL[0])


def test_stock_suffices_for_each_lap_but_of_what_is_short() -> None:
    once, thrice = ({each.sku: each.units for each in receipts(laps)} for laps in (1, 3))
    assert all(thrice[sku] - SPARE == 3 * (once[sku] - SPARE) for sku in ORDINARY)
    assert all(thrice[sku] == once[sku] for sku in SHORT)


@pytest.mark.parametrize(
    ("kind", "share"),
    [(ExpectedOutcome.DECLINED, 0.03), (ExpectedOutcome.OUT_OF_STOCK, 0.02), (ExpectedOutcome.NOWHERE, 0.01)],
)
@pytest.mark.parametrize("rows", [2_000, 20_000, ROWS])
def test_a_known_share_of_orders_comes_to_nothing(kind: ExpectedOutcome, share: float, rows: int) -> None:
    found = sum(outcome(purchase) is kind for purchase in ALL[:rows]) / rows
    assert abs(found - share) < (0.002 if rows > 10_000 else 0.01)


@given(a_purchase)
def test_an_order_is_what_the_row_says(purchase: Purchase) -> None:
    placed = order(purchase)
    assert placed == order(purchase)
    assert (placed.order_id, placed.total_cents) == (purchase.order_id, purchase.cents)
    assert sum(line.units for line in placed.lines) == purchase.units
    assert len({line.sku for line in placed.lines}) == len(placed.lines)
    assert len(placed.lines) > 1 or purchase.units <= 2


@given(a_purchase)
def test_at_most_one_thing_is_wrong_with_an_order(purchase: Purchase) -> None:
    placed = order(purchase)
    scarce = {line.sku for line in placed.lines} & {*SHORT, *SOLD_OUT}
    wrong = {
        ExpectedOutcome.DECLINED: placed.card == DECLINED and placed.total_cents > 0,
        ExpectedOutcome.OUT_OF_STOCK: bool(scarce),
        ExpectedOutcome.NOWHERE: placed.country == "AQ",
    }
    assert {kind for kind, a in wrong.items() if a} == {outcome(purchase)} - {ExpectedOutcome.CONFIRMED}
    assert placed.card in {ACCEPTED, DECLINED}


def test_what_costs_nothing_is_never_declined() -> None:
    free = [purchase for purchase in ALL if not purchase.cents]
    assert ExpectedOutcome.DECLINED not in map(outcome, free)
    assert all(order(purchase).card == ACCEPTED for purchase in free)


def test_ordinary_skus_suffice_for_all_and_scarce_for_none() -> None:
    stock = Counter({receipt.sku: receipt.units for receipt in receipts()})
    orders = [order(purchase) for purchase in ALL]
    demand = units_by_sku(orders)
    assert all(stock[sku] > demand[sku] > 0 for sku in ORDINARY)
    lines = [line for each in orders for line in each.lines if line.sku not in ORDINARY]
    assert {line.sku for line in lines} == {*SHORT, *SOLD_OUT}
    assert all(line.units > stock[line.sku] for line in lines)
    assert len({*ORDINARY, *SHORT, *SOLD_OUT}) == 500


def test_some_orders_have_ordinary_lines_to_give_back() -> None:
    refused = [order(p) for p in ALL[:2000] if outcome(p) is ExpectedOutcome.OUT_OF_STOCK]
    assert any({line.sku for line in each.lines} & set(ORDINARY) for each in refused)


def test_the_outside_agrees_on_the_words() -> None:
    placed = [order(purchase) for purchase in ALL[:2000]]
    assert behaviour(DECLINED).decline == ExpectedOutcome.DECLINED
    assert {each.country for each in placed if not ships_to(each.country)} == {"AQ"}
