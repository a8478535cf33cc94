"""What the checker calls for by an order alone, beside what the orders of a run were made for."""

from agents.messages import Order, OrderLine
from chaos.judges.rows import outcome_of
from demo.purchases import ORDINARY, SHORT, SOLD_OUT, order, outcome, purchases, receipts
from tables.values import MAX_LINES, MAX_ORDER_BYTES

RECEIVED = {receipt.sku: receipt.units for receipt in receipts()}


def an_order(
    *lines: tuple[str, int], cents: int = 100, card: str = "tok_accepted", country: str = "US"
) -> Order:
    wanted = tuple(OrderLine(sku=sku, units=units) for sku, units in lines)
    return Order(order_id="o", customer="c", lines=wanted, total_cents=cents, card=card, country=country)


def became(placed: Order) -> str:
    return outcome_of(placed, RECEIVED)


def test_it_agrees_with_what_orders_were_made_for() -> None:
    some = purchases(5_000)
    assert [became(order(each)) for each in some] == [outcome(each).value for each in some]


def test_each_reason() -> None:
    plenty = (ORDINARY[0], 1)
    assert became(an_order(plenty)) == "confirmed"
    assert became(an_order()) == "no_lines"
    assert became(an_order(*[plenty] * (MAX_LINES + 1))) == "too_many_lines"
    assert became(an_order(*[plenty] * MAX_LINES)) != "too_many_lines"
    assert became(an_order(("x" * MAX_ORDER_BYTES, 1))) == "order_too_large"
    assert became(an_order(("unknown", 1))) == "out_of_stock"
    assert became(an_order((SOLD_OUT[0], 1))) == "out_of_stock"
    assert became(an_order((SHORT[0], 1), (SHORT[0], 1))) == "out_of_stock", "all lines of a SKU count"
    assert became(an_order(plenty, card="tok_declined")) == "card_declined"
    assert became(an_order(plenty, card="tok_declined", cents=0)) == "confirmed", "nothing is charged"
    assert became(an_order(plenty, country="AQ")) == "unsupported_destination"


def test_of_several_reasons_the_first_on_its_way() -> None:
    assert became(an_order(("unknown", 1), card="tok_declined", country="AQ")) == "out_of_stock"
    assert became(an_order((ORDINARY[0], 1), card="tok_declined", country="AQ")) == "card_declined"
