"""The check must go red for each way in which things can fail to add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from hashlib import sha256

import msgspec
import pytest

from agents.gateway.cards import ACCEPTED
from agents.gateway.wire import Charged, Refunded
from demo.evidence import Evidence, Settlement
from demo.failures import TIERS, DeadLetter, Reference, Retry, Source, with_files
from demo.purchases import (
    ORDINARY,
    SHORT,
    Outcome,
    Purchase,
    attached_bytes,
    attachments,
    orchestrated,
    order,
    outcome,
    purchases,
    receipts,
    units_by_sku,
)
from demo.trouble import poison, tiers, troubled_order
from demo.verdict import Verdict, judge
from streams.saga.state import SagaRow, StepState
from tables.stock import StockLevel

pytestmark = pytest.mark.slow("three seconds of orders")

BOUGHT = purchases(400)
ONCE = "every order settled exactly once"
CALLED_FOR = "each with the outcome its data calls for"
CHARGED = "no order charged twice"
MONEY = "captured - refunded = value of confirmed orders"
STOCK = "received = on hand + shipped"
UNHANDLED = "no message left unhandled"
DEAD = "every dead letter is accounted for"
RETRIED = "every retry took its turn and came to an end"
CLAIMS = "every claim check was honoured"
SAGAS = "every saga ended once, as its order's data calls for"
FILES = "every file came out as it was put in"


def charge(order_id: str, cents: int) -> Charged:
    return Charged(f"ch-{order_id}", f"capture:{order_id}", "captured", "", cents, "tok_accepted", "")


def refund(order_id: str, cents: int) -> Refunded:
    return Refunded(f"re-{order_id}", f"refund:{order_id}", f"capture:{order_id}", "refunded", cents, "")


STEPS = ("reserve_inventory", "process_payment", "schedule_shipping")
FAILS_AT = {Outcome.OUT_OF_STOCK: 0, Outcome.DECLINED: 1, Outcome.NOWHERE: 2}


def saga(purchase: Purchase) -> SagaRow:
    """How an order's saga stands when all went well."""
    what = outcome(purchase)
    status = "completed" if what is Outcome.CONFIRMED else "compensated"
    fails = FAILS_AT.get(what, len(STEPS))
    stands = [status] * fails + ["failed"] + ["pending"] * len(STEPS)
    steps = tuple(
        StepState(name=name, action="", compensation="", status=stand)  # type: ignore[arg-type]
        for name, stand in zip(STEPS, stands, strict=False)
    )
    return SagaRow(
        saga_id=f"order:{purchase.order_id}",
        version=1,
        status=status,  # type: ignore[arg-type]
        current_step=STEPS[0],
        steps=steps,
        created_at=1.0,
        start=b"{}",
    )


def good() -> Evidence:
    """What is found when all went well, payment first."""
    evidence = Evidence()
    for number, purchase in enumerate(BOUGHT):
        what = outcome(purchase)
        evidence.settlements.append(Settlement(f"m-{number}", troubled_order(purchase), what.value))
        for tier in tiers(purchase):
            source = Source("stock.reserved", 3, number)
            evidence.retries.append(Retry(tier, purchase.order_id, "payments.capture", source))
        if (bad := poison(purchase)) is not None:
            key = (bad.record.key or b"").decode()
            evidence.poison[key] += 1
            evidence.dead_letters.append(DeadLetter(key, bad.error, Source(bad.topic, 1, number)))
        if purchase.cents and what is not Outcome.DECLINED:
            evidence.ledger.append(charge(purchase.order_id, purchase.cents))
            if what is not Outcome.CONFIRMED:
                evidence.ledger.append(refund(purchase.order_id, purchase.cents))
    evidence.sagas = {p.order_id: saga(p) for p in BOUGHT if orchestrated(p)}
    evidence.shipped = units_by_sku(order(p) for p in BOUGHT if outcome(p) is Outcome.CONFIRMED)
    for receipt in receipts():
        evidence.received[receipt.sku] = receipt.units
        shipped = evidence.shipped[receipt.sku]
        evidence.stock[receipt.sku] = StockLevel(
            received=receipt.units, on_hand=receipt.units - shipped, shipped=shipped
        )
    evidence.packed = dict(packed())
    evidence.references = references()
    return evidence


ATTACHED = 0.05


def judged(evidence: Evidence) -> Verdict:
    return judge(BOUGHT, evidence, attached=ATTACHED, trouble=True, sagas=True)


def references() -> list[Reference]:
    """On each topic that large files travel by."""
    return [
        Reference(topic, purchase.order_id, size)
        for purchase in BOUGHT
        for topic in with_files(purchase)
        if (size := attached_bytes(purchase, ATTACHED)) > 900 * 1024
    ]


@cache
def packed() -> dict[str, list[tuple[str, str]]]:
    """Each order's files, once and untouched."""
    return {
        purchase.order_id: [(each.name, sha256(each.data).hexdigest()) for each in files]
        for purchase in BOUGHT
        if (files := attachments(purchase, ATTACHED))
    }


def test_files_are_checked_by_digest_each_once() -> None:
    evidence = good()
    assert 5 < len(evidence.packed) < 50
    assert judged(evidence).passed
    one, other, *_ = evidence.packed
    for spoiled in (
        {**packed(), one: []},
        {**packed(), one: packed()[one] * 2},
        {**packed(), one: [(packed()[one][0][0], "0" * 64)]},
        {**packed(), "o-unknown": packed()[one]},
        {**packed(), one: packed()[other], other: packed()[one]},
    ):
        evidence.packed = spoiled
        assert failed(judged(evidence)) == {FILES}


def test_files_are_of_all_sizes_and_the_same_each_time() -> None:
    sizes = [len(each.data) for p in BOUGHT for each in attachments(p, 1.0)]
    assert len(sizes) == len(BOUGHT)
    assert min(sizes) < 100
    assert max(sizes) > 4_000_000
    assert attachments(BOUGHT[7], 1.0) == attachments(BOUGHT[7], 1.0)
    assert not any(attachments(purchase, 0.0) for purchase in BOUGHT)


def test_the_shortest_run_has_a_file_of_either_end() -> None:
    sizes = [len(each.data) for p in BOUGHT[:100] for each in attachments(p, 0.01)]
    assert (min(sizes), max(sizes)) == (10, 5_000_000)
    assert len(sizes) < 5


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
    halves = {f"capture:{purchase.order_id}" for purchase in BOUGHT if orchestrated(purchase)}
    charges = [row for row in evidence.ledger if isinstance(row, Charged)]
    one, other = [row for row in charges if row.operation in halves][:2]
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
    evidence.dead_letters.append(DeadLetter("cdnow-00001", "Undecodable", Source("some.topic", 1, 5)))


def a_dead_letter_lost(evidence: Evidence) -> None:
    evidence.dead_letters.pop()


def a_dead_letter_twice(evidence: Evidence) -> None:
    evidence.dead_letters.append(evidence.dead_letters[0])


def dead_for_another_reason(evidence: Evidence) -> None:
    evidence.dead_letters[0] = evidence.dead_letters[0]._replace(error="TooLarge")


def poison_sent_again(evidence: Evidence) -> None:
    """Each time it is sent it is a dead letter: here it was, only once."""
    evidence.poison[evidence.dead_letters[0].key] += 1


def nothing_put_off(evidence: Evidence) -> None:
    evidence.retries = []


def a_tier_skipped(evidence: Evidence) -> None:
    later = next(each for each in evidence.retries if each.tier == 2)
    evidence.retries.remove(later._replace(tier=1))


def put_off_twice(evidence: Evidence) -> None:
    evidence.retries.append(evidence.retries[0])


def retried_and_lost(evidence: Evidence) -> None:
    key = evidence.retries[0].key
    evidence.settlements = [each for each in evidence.settlements if each.order.order_id != key]


def an_object_lost(evidence: Evidence) -> None:
    evidence.references[0] = evidence.references[0]._replace(size=0, fault="s3://b/events/x is not there")


def by_no_reference(evidence: Evidence) -> None:
    largest = max(evidence.references, key=lambda each: each.size)
    evidence.references.remove(largest)


def change_saga(evidence: Evidence, what: Outcome, **changes: object) -> None:
    name = next(p.order_id for p in BOUGHT if orchestrated(p) and outcome(p) is what)
    evidence.sagas[name] = msgspec.structs.replace(evidence.sagas[name], **changes)


def a_saga_missing(evidence: Evidence) -> None:
    evidence.sagas.popitem()


def a_saga_of_a_placed_order(evidence: Evidence) -> None:
    placed = next(purchase for purchase in BOUGHT if not orchestrated(purchase))
    evidence.sagas[placed.order_id] = saga(placed)


def a_saga_still_going_back(evidence: Evidence) -> None:
    change_saga(evidence, Outcome.DECLINED, status="compensating")


def a_saga_whose_step_stands(evidence: Evidence) -> None:
    name, steps = next(
        (name, row.steps) for name, row in evidence.sagas.items() if row.steps[0].status == "compensated"
    )
    standing = (msgspec.structs.replace(steps[0], status="completed"), *steps[1:])
    evidence.sagas[name] = msgspec.structs.replace(evidence.sagas[name], steps=standing)


def a_cent_moved_between_the_halves(evidence: Evidence) -> None:
    """The sums agree; what the sagas took too much, the choreography took too little."""
    by_saga = {f"capture:{purchase.order_id}" for purchase in BOUGHT if orchestrated(purchase)}
    charges = [row for row in evidence.ledger if isinstance(row, Charged)]
    charge_at(evidence, next(row for row in charges if row.operation in by_saga), 1)
    charge_at(evidence, next(row for row in charges if row.operation not in by_saga), -1)


def test_it_passes_when_all_adds_up() -> None:
    verdict = judged(good())
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
        (a_dead_letter_lost, {DEAD}),
        (a_dead_letter_twice, {DEAD}),
        (dead_for_another_reason, {DEAD}),
        (poison_sent_again, {DEAD}),
        (nothing_put_off, {RETRIED}),
        (a_tier_skipped, {RETRIED}),
        (put_off_twice, {RETRIED}),
        (retried_and_lost, {ONCE, MONEY, RETRIED}),
        (an_object_lost, {CLAIMS}),
        (by_no_reference, {CLAIMS}),
        (a_cent_moved_between_the_halves, {CHARGED, MONEY}),
        (a_saga_missing, {SAGAS}),
        (a_saga_of_a_placed_order, {SAGAS}),
        (a_saga_still_going_back, {SAGAS}),
        (a_saga_whose_step_stands, {SAGAS}),
    ],
)
def test_it_goes_red(spoil: Callable[[Evidence], None], red: set[str]) -> None:
    evidence = good()
    spoil(evidence)
    verdict = judged(evidence)
    assert failed(verdict) == red
    assert not verdict.passed


def test_it_names_what_is_wrong() -> None:
    evidence = good()
    wrong_reason(evidence)
    (finding,) = (each for each in judged(evidence).findings if not each.passed)
    assert "cdnow-" in finding.says
    assert "is out_of_stock, not card_declined" in finding.says


def test_nothing_found_at_all_is_red() -> None:
    assert failed(judged(Evidence())) == {
        ONCE,
        CHARGED,
        MONEY,
        STOCK,
        SAGAS,
        DEAD,
        RETRIED,
        CLAIMS,
        FILES,
    }


def test_without_trouble_every_dead_letter_is_one_too_many() -> None:
    evidence = good()
    assert DEAD in failed(judge(BOUGHT, evidence))
    evidence.dead_letters = []
    assert DEAD not in failed(judge(BOUGHT, evidence))


def test_a_second_run_on_a_stack_doubles_the_poison() -> None:
    evidence = good()
    again = [
        letter._replace(source=letter.source._replace(offset=letter.source.offset + 10_000))
        for letter in evidence.dead_letters
    ]
    evidence.dead_letters += again
    assert failed(judged(evidence)) == {DEAD}
    evidence.poison += Counter(letter.key for letter in again)
    assert judged(evidence).passed


def test_a_slow_call_may_have_been_retried_besides() -> None:
    evidence = good()
    plain = next(each.order.order_id for each in evidence.settlements if each.order.card == ACCEPTED)
    evidence.retries.append(Retry(1, plain, "payments.capture", Source("stock.reserved", 5, 5)))
    assert judged(evidence).passed


def test_figures_tell_of_retries_dead_letters_and_claim_checks() -> None:
    found = judged(good()).figures
    assert all(found.put_off[f"retry-{tier}"] for tier in TIERS)
    assert found.dead_letters == {"Undecodable": 3, "MissingHeader": 1, "KeyMismatch": 1}
    assert (found.by_reference, found.by_reference_bytes) == (
        len(references()),
        sum(each.size for each in references()),
    )
