"""The check must go red for each way in which things can fail to add up."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import msgspec
import pytest

from agents.gateway.wire import Charged, Refunded
from demo.evidence import Evidence, Settlement
from demo.purchases import (
    ORDINARY,
    SHORT,
    Outcome,
    attachments,
    order,
    outcome,
    purchases,
    receipts,
    units_by_sku,
)
from demo.verdict import Verdict, judge
from tables.stock import StockLevel

BOUGHT = purchases(400)
ONCE = "every order settled exactly once"
CALLED_FOR = "each with the outcome its data calls for"
CHARGED = "no order charged twice"
MONEY = "captured - refunded = value of confirmed orders"
STOCK = "received = on hand + shipped"
UNHANDLED = "no message left unhandled"
DEAD = "no dead letters"


def charge(order_id: str, cents: int) -> Charged:
    return Charged(f"ch-{order_id}", f"capture:{order_id}", "captured", "", cents, "tok_accepted", "")


def refund(order_id: str, cents: int) -> Refunded:
    return Refunded(f"re-{order_id}", f"refund:{order_id}", f"capture:{order_id}", "refunded", cents, "")


def good() -> Evidence:
    """What is found when all went well, payment first."""
    evidence = Evidence()
    for number, purchase in enumerate(BOUGHT):
        what = outcome(purchase)
        evidence.settlements.append(Settlement(f"m-{number}", order(purchase), what.value))
        if purchase.cents and what is not Outcome.DECLINED:
            evidence.ledger.append(charge(purchase.order_id, purchase.cents))
            if what is not Outcome.CONFIRMED:
                evidence.ledger.append(refund(purchase.order_id, purchase.cents))
    evidence.shipped = units_by_sku(order(p) for p in BOUGHT if outcome(p) is Outcome.CONFIRMED)
    for receipt in receipts():
        evidence.received[receipt.sku] = receipt.units
        shipped = evidence.shipped[receipt.sku]
        evidence.stock[receipt.sku] = StockLevel(
            received=receipt.units, on_hand=receipt.units - shipped, shipped=shipped
        )
    return evidence


ATTACHED = 0.05


def packed() -> dict[str, list[tuple[str, str]]]:
    """Each order's files, once and untouched."""
    return {
        purchase.order_id: [(each.name, sha256(each.data).hexdigest()) for each in files]
        for purchase in BOUGHT
        if (files := attachments(purchase, ATTACHED))
    }


def test_files_are_checked_by_digest_each_once() -> None:
    evidence = good()
    evidence.packed = packed()
    assert 5 < len(evidence.packed) < 50
    assert judge(BOUGHT, evidence, attached=ATTACHED).passed
    one, other, *_ = evidence.packed
    for spoiled in (
        {**packed(), one: []},
        {**packed(), one: packed()[one] * 2},
        {**packed(), one: [(packed()[one][0][0], "0" * 64)]},
        {**packed(), "o-unknown": packed()[one]},
        {**packed(), one: packed()[other], other: packed()[one]},
    ):
        evidence.packed = spoiled
        assert failed(judge(BOUGHT, evidence, attached=ATTACHED)) == {"every file came out as it was put in"}


def test_files_are_of_all_sizes_and_the_same_each_time() -> None:
    sizes = [len(each.data) for p in BOUGHT for each in attachments(p, 1.0)]
    assert len(sizes) == len(BOUGHT)
    assert min(sizes) < 100
    assert max(sizes) > 4_000_000
    assert attachments(BOUGHT[7], 1.0) == attachments(BOUGHT[7], 1.0)
    assert attachments(BOUGHT[7], 0.0) == ()


def failed(verdict: Verdict) -> set[str]:
    return {finding.name for finding in verdict.findings if not finding.passed}


def first(evidence: Evidence, what: Outcome) -> int:
    return next(i for i, each in enumerate(evidence.settlements) if each.outcome == what)


def replace_settlement(evidence: Evidence, what: Outcome, **changes: object) -> None:
    at = first(evidence, what)
    evidence.settlements[at] = msgspec.structs.replace(evidence.settlements[at], **changes)


def lose(evidence: Evidence) -> None:
    del evidence.settlements[first(evidence, Outcome.DECLINED)]


def double(evidence: Evidence) -> None:
    again = evidence.settlements[first(evidence, Outcome.DECLINED)]
    evidence.settlements.append(msgspec.structs.replace(again, message_id="another"))


def confirm_and_cancel(evidence: Evidence) -> None:
    again = evidence.settlements[first(evidence, Outcome.CONFIRMED)]
    evidence.settlements.append(
        msgspec.structs.replace(again, message_id="another", outcome=Outcome.OUT_OF_STOCK)
    )


def repeat_an_id(evidence: Evidence) -> None:
    replace_settlement(evidence, Outcome.DECLINED, message_id=evidence.settlements[0].message_id)


def settle_a_stranger(evidence: Evidence) -> None:
    stranger = msgspec.structs.replace(evidence.settlements[0].order, order_id="stranger", total_cents=0)
    evidence.settlements.append(Settlement("another", stranger, Outcome.DECLINED))


def wrong_reason(evidence: Evidence) -> None:
    replace_settlement(evidence, Outcome.DECLINED, outcome=Outcome.OUT_OF_STOCK)


def changed_order(evidence: Evidence) -> None:
    at = first(evidence, Outcome.DECLINED)
    other = msgspec.structs.replace(evidence.settlements[at].order, customer="somebody")
    replace_settlement(evidence, Outcome.DECLINED, order=other)


def charge_at(evidence: Evidence, row: Charged | Refunded, by: int) -> None:
    evidence.ledger[evidence.ledger.index(row)] = msgspec.structs.replace(row, cents=row.cents + by)


def a_cent_off(evidence: Evidence) -> None:
    charge_at(evidence, evidence.ledger[0], 1)


def a_cent_moved(evidence: Evidence) -> None:
    """The sums agree, but one customer has paid for another."""
    one, other = [row for row in evidence.ledger if isinstance(row, Charged)][:2]
    charge_at(evidence, one, 1)
    charge_at(evidence, other, -1)


def charge_twice(evidence: Evidence) -> None:
    """Given back once, so that the order's balance is right."""
    order_id = evidence.settlements[first(evidence, Outcome.CONFIRMED)].order.order_id
    evidence.ledger += [
        msgspec.structs.replace(charge(order_id, 1), operation=f"again:{order_id}"),
        refund(order_id, 1),
    ]


def charge_a_stranger(evidence: Evidence) -> None:
    evidence.ledger += [charge("stranger", 1), refund("stranger", 1)]


def forget_a_refund(evidence: Evidence) -> None:
    evidence.ledger.remove(next(row for row in evidence.ledger if isinstance(row, Refunded)))


def change_stock(evidence: Evidence, sku: str, **changes: int) -> None:
    evidence.stock[sku] = msgspec.structs.replace(evidence.stock[sku], **changes)


def a_unit_off(evidence: Evidence) -> None:
    change_stock(evidence, ORDINARY[0], on_hand=evidence.stock[ORDINARY[0]].on_hand - 1)


def a_unit_moved(evidence: Evidence) -> None:
    """The sums agree over all SKUs, but not for each."""
    for sku, by in ((ORDINARY[0], -1), (ORDINARY[1], 1)):
        change_stock(evidence, sku, on_hand=evidence.stock[sku].on_hand + by)


def a_unit_still_reserved(evidence: Evidence) -> None:
    change_stock(evidence, SHORT[0], on_hand=0, reserved=1)


def a_receipt_twice(evidence: Evidence) -> None:
    """The table agrees with itself; only the file knows better."""
    sku = ORDINARY[0]
    row = evidence.stock[sku]
    evidence.received[sku] += 5
    change_stock(evidence, sku, received=row.received + 5, on_hand=row.on_hand + 5)


def shipped_twice(evidence: Evidence) -> None:
    sku = next(iter(evidence.shipped))
    row = evidence.stock[sku]
    evidence.shipped[sku] += 1
    change_stock(evidence, sku, on_hand=row.on_hand - 1, shipped=row.shipped + 1)


def a_row_missing(evidence: Evidence) -> None:
    del evidence.stock[ORDINARY[0]]


def something_unhandled(evidence: Evidence) -> None:
    evidence.unhandled["some.topic"] = 1


def a_dead_letter(evidence: Evidence) -> None:
    evidence.dead_letters["some.topic.dlq"] = 1


def test_it_passes_when_all_adds_up() -> None:
    verdict = judge(BOUGHT, good())
    assert verdict.passed
    assert failed(verdict) == set()
    found = verdict.figures
    assert found.captured_cents - found.refunded_cents == found.confirmed_cents
    assert found.received == found.on_hand + found.shipped
    assert found.settled == found.confirmed + sum(found.cancelled.values()) == len(BOUGHT)


@pytest.mark.parametrize(
    ("spoil", "red"),
    [
        (lose, {ONCE}),
        (double, {ONCE}),
        (confirm_and_cancel, {ONCE, CALLED_FOR}),
        (repeat_an_id, {ONCE}),
        (settle_a_stranger, {ONCE}),
        (wrong_reason, {CALLED_FOR}),
        (changed_order, {CALLED_FOR}),
        (a_cent_off, {CHARGED, MONEY}),
        (a_cent_moved, {CHARGED}),
        (charge_twice, {CHARGED}),
        (charge_a_stranger, {CHARGED}),
        (forget_a_refund, {CHARGED, MONEY}),
        (a_unit_off, {STOCK}),
        (a_unit_moved, {STOCK}),
        (a_unit_still_reserved, {STOCK}),
        (a_receipt_twice, {STOCK}),
        (shipped_twice, {STOCK}),
        (a_row_missing, {STOCK}),
        (something_unhandled, {UNHANDLED}),
        (a_dead_letter, {DEAD}),
    ],
)
def test_it_goes_red(spoil: Callable[[Evidence], None], red: set[str]) -> None:
    evidence = good()
    spoil(evidence)
    verdict = judge(BOUGHT, evidence)
    assert failed(verdict) == red
    assert not verdict.passed


def test_it_names_what_is_wrong() -> None:
    evidence = good()
    wrong_reason(evidence)
    (finding,) = (each for each in judge(BOUGHT, evidence).findings if not each.passed)
    assert "cdnow-" in finding.says
    assert "is out_of_stock, not card_declined" in finding.says


def test_nothing_found_at_all_is_red() -> None:
    assert failed(judge(BOUGHT, Evidence())) == {ONCE, CHARGED, MONEY, STOCK}
