"""The check must go red for each way in which things can fail to add up."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from hashlib import sha256

import msgspec
import pytest

from agents.gateway.cards import ACCEPTED
from agents.gateway.wire import Charged, Refunded
from demo.evidence import DemoEvidence, Settlement
from demo.failures import TIERS, DeadLetter, LetterSource, Reference, Retry, with_files
from demo.purchases import (
    ORDINARY,
    SHORT,
    ExpectedOutcome,
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

case = pytest.param
CONFIRMED, DECLINED, OUT_OF_STOCK = (
    ExpectedOutcome.CONFIRMED,
    ExpectedOutcome.DECLINED,
    ExpectedOutcome.OUT_OF_STOCK,
)
pytestmark = pytest.mark.slow("three seconds of orders")

#: What is done to evidence that is whole.
Spoil = Callable[[DemoEvidence], object]
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
FAILS_AT = {OUT_OF_STOCK: 0, DECLINED: 1, ExpectedOutcome.NOWHERE: 2}


def saga(purchase: Purchase) -> SagaRow:
    what = outcome(purchase)
    status = "completed" if what is CONFIRMED else "compensated"
    fails = FAILS_AT.get(what, len(STEPS))
    states = [status] * fails + ["failed"] + ["pending"] * len(STEPS)
    steps = tuple(
        StepState(name=name, action="", compensation="", status=stand)  # type: ignore[arg-type]
        for name, stand in zip(STEPS, states, strict=False)
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


def good() -> DemoEvidence:
    evidence = DemoEvidence()
    for number, purchase in enumerate(BOUGHT):
        what = outcome(purchase)
        evidence.settlements.append(Settlement(f"m-{number}", troubled_order(purchase), what.value))
        for tier in tiers(purchase):
            source = LetterSource("stock.reserved", 3, number)
            evidence.retries.append(Retry(tier, purchase.order_id, "payments.capture", source))
        if (bad := poison(purchase)) is not None:
            key = (bad.record.key or b"").decode()
            evidence.poison[key] += 1
            evidence.dead_letters.append(DeadLetter(key, bad.error, LetterSource(bad.topic, 1, number)))
        if purchase.cents and what is not DECLINED:
            evidence.ledger.append(charge(purchase.order_id, purchase.cents))
            if what is not CONFIRMED:
                evidence.ledger.append(refund(purchase.order_id, purchase.cents))
    evidence.sagas = {p.order_id: saga(p) for p in BOUGHT if orchestrated(p)}
    evidence.shipped = units_by_sku(order(p) for p in BOUGHT if outcome(p) is CONFIRMED)
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


def judged(evidence: DemoEvidence) -> Verdict:
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


def settled(evidence: DemoEvidence, what: ExpectedOutcome) -> Settlement:
    return next(each for each in evidence.settlements if each.outcome == what)


def settle_again(what: ExpectedOutcome, **changes: object) -> Spoil:
    def spoil(evidence: DemoEvidence) -> None:
        again = msgspec.structs.replace(settled(evidence, what), message_id="another", **changes)
        evidence.settlements.append(again)

    return spoil


def settle_otherwise(evidence: DemoEvidence, **changes: object) -> None:
    once = settled(evidence, DECLINED)
    at = evidence.settlements.index(once)
    evidence.settlements[at] = msgspec.structs.replace(once, **changes)


def settle_a_stranger(evidence: DemoEvidence) -> None:
    stranger = msgspec.structs.replace(evidence.settlements[0].order, order_id="stranger", total_cents=0)
    evidence.settlements.append(Settlement("another", stranger, DECLINED))


def change_an_order(evidence: DemoEvidence) -> None:
    ordered = settled(evidence, DECLINED).order
    settle_otherwise(evidence, order=msgspec.structs.replace(ordered, customer="stranger"))


def charges(evidence: DemoEvidence, *, by_saga: bool) -> list[Charged]:
    those = {f"capture:{each.order_id}" for each in BOUGHT if orchestrated(each) is by_saga}
    return [row for row in evidence.ledger if isinstance(row, Charged) and row.operation in those]


def move_a_cent(evidence: DemoEvidence, more: Charged | Refunded, less: Charged | None = None) -> None:
    for row, by in ((more, 1), (less, -1)):
        if row is not None:
            at = evidence.ledger.index(row)
            evidence.ledger[at] = msgspec.structs.replace(row, cents=row.cents + by)


def charge_twice(evidence: DemoEvidence) -> None:
    """Given back once, so that the order's balance is right."""
    order_id = settled(evidence, CONFIRMED).order.order_id
    again = msgspec.structs.replace(charge(order_id, 1), operation=f"again:{order_id}")
    evidence.ledger += [again, refund(order_id, 1)]


def forget_a_refund(evidence: DemoEvidence) -> None:
    evidence.ledger.remove(next(row for row in evidence.ledger if isinstance(row, Refunded)))


def move_units(evidence: DemoEvidence, sku: str, **by: int) -> None:
    row = evidence.stock[sku]
    moved = {name: getattr(row, name) + units for name, units in by.items()}
    evidence.stock[sku] = msgspec.structs.replace(row, **moved)


def a_unit_of_another_sku(evidence: DemoEvidence) -> None:
    """The sums agree over all SKUs, but not for each."""
    move_units(evidence, ORDINARY[0], on_hand=-1)
    move_units(evidence, ORDINARY[1], on_hand=1)


def a_receipt_twice(evidence: DemoEvidence) -> None:
    """The table agrees with itself; only the file knows better."""
    evidence.received[ORDINARY[0]] += 5
    move_units(evidence, ORDINARY[0], received=5, on_hand=5)


def ship_twice(evidence: DemoEvidence) -> None:
    sku = next(iter(evidence.shipped))
    evidence.shipped[sku] += 1
    move_units(evidence, sku, on_hand=-1, shipped=1)


def die_for_another_reason(evidence: DemoEvidence) -> None:
    evidence.dead_letters[0] = evidence.dead_letters[0]._replace(error="TooLarge")


def skip_a_tier(evidence: DemoEvidence) -> None:
    later = next(each for each in evidence.retries if each.tier == 2)
    evidence.retries.remove(later._replace(tier=1))


def lose_what_was_retried(evidence: DemoEvidence) -> None:
    key = evidence.retries[0].key
    evidence.settlements = [each for each in evidence.settlements if each.order.order_id != key]


def lose_an_object(evidence: DemoEvidence) -> None:
    evidence.references[0] = evidence.references[0]._replace(size=0, fault="s3://b/events/x is not there")


def conduct_a_placed_order(evidence: DemoEvidence) -> None:
    placed = next(purchase for purchase in BOUGHT if not orchestrated(purchase))
    evidence.sagas[placed.order_id] = saga(placed)


def leave_a_saga_going_back(evidence: DemoEvidence) -> None:
    name = next(p.order_id for p in BOUGHT if orchestrated(p) and outcome(p) is DECLINED)
    evidence.sagas[name] = msgspec.structs.replace(evidence.sagas[name], status="compensating")


def leave_a_step_standing(evidence: DemoEvidence) -> None:
    name, row = next(each for each in evidence.sagas.items() if each[1].steps[0].status == "compensated")
    standing = (msgspec.structs.replace(row.steps[0], status="completed"), *row.steps[1:])
    evidence.sagas[name] = msgspec.structs.replace(row, steps=standing)


def test_it_passes_when_all_adds_up() -> None:
    verdict = judged(good())
    assert verdict.passed
    assert failed(verdict) == set()
    found = verdict.figures
    assert found.captured_cents - found.refunded_cents == found.confirmed_cents
    assert found.received == found.on_hand + found.shipped
    assert found.settled == found.confirmed + sum(found.cancelled.values()) == len(BOUGHT)


@pytest.mark.promise(
    "cents-and-pieces",
    "for each thing that may fail to add up; also a dead letter, a retry or a payload too few or too many",
)
@pytest.mark.parametrize(
    ("spoil", "red"),
    [
        case(lambda e: e.settlements.remove(settled(e, DECLINED)), {ONCE}, id="a settlement is lost"),
        case(settle_again(DECLINED), {ONCE}, id="settled twice"),
        case(settle_again(CONFIRMED, outcome=OUT_OF_STOCK), {ONCE, CALLED_FOR}, id="confirmed and cancelled"),
        case(
            lambda e: settle_otherwise(e, message_id=e.settlements[0].message_id), {ONCE}, id="one id twice"
        ),
        case(settle_a_stranger, {ONCE}, id="an order of a stranger"),
        case(lambda e: settle_otherwise(e, outcome=OUT_OF_STOCK), {CALLED_FOR}, id="another reason"),
        case(change_an_order, {CALLED_FOR}, id="another order"),
        case(lambda e: move_a_cent(e, e.ledger[0]), {CHARGED, MONEY}, id="a cent off"),
        case(lambda e: move_a_cent(e, *charges(e, by_saga=True)[:2]), {CHARGED}, id="one paid for another"),
        case(
            # The sums agree: what the sagas took too much, the choreography took too little.
            lambda e: move_a_cent(e, charges(e, by_saga=True)[0], charges(e, by_saga=False)[0]),
            {CHARGED, MONEY},
            id="a cent moved between the halves",
        ),
        case(charge_twice, {CHARGED}, id="charged twice"),
        case(
            lambda e: e.ledger.extend([charge("stranger", 1), refund("stranger", 1)]),
            {CHARGED},
            id="a stranger is charged",
        ),
        case(forget_a_refund, {CHARGED, MONEY}, id="not refunded"),
        case(lambda e: move_units(e, ORDINARY[0], on_hand=-1), {STOCK}, id="a unit off"),
        case(a_unit_of_another_sku, {STOCK}, id="a unit of another SKU"),
        case(lambda e: move_units(e, SHORT[0], on_hand=-1, reserved=1), {STOCK}, id="a unit still reserved"),
        case(a_receipt_twice, {STOCK}, id="received twice"),
        case(ship_twice, {STOCK}, id="shipped twice"),
        case(lambda e: e.stock.pop(ORDINARY[0]), {STOCK}, id="a row is missing"),
        case(lambda e: e.unhandled.update({"some.topic": 1}), {UNHANDLED}, id="something unhandled"),
        case(
            lambda e: e.dead_letters.append(DeadLetter("k", "Undecodable", LetterSource("some.topic", 1, 5))),
            {DEAD},
            id="a dead letter of nothing",
        ),
        case(lambda e: e.dead_letters.pop(), {DEAD}, id="a dead letter is lost"),
        case(lambda e: e.dead_letters.append(e.dead_letters[0]), {DEAD}, id="a dead letter twice"),
        case(die_for_another_reason, {DEAD}, id="dead for another reason"),
        case(lambda e: e.poison.update([e.dead_letters[0].key]), {DEAD}, id="poison without a letter"),
        case(lambda e: e.retries.clear(), {RETRIED}, id="nothing is postponed"),
        case(skip_a_tier, {RETRIED}, id="a tier is skipped"),
        case(lambda e: e.retries.append(e.retries[0]), {RETRIED}, id="postponed twice"),
        case(lose_what_was_retried, {ONCE, MONEY, RETRIED}, id="retried and lost"),
        case(lose_an_object, {CLAIMS}, id="an object is lost"),
        case(
            lambda e: e.references.remove(max(e.references, key=lambda each: each.size)),
            {CLAIMS},
            id="a large file by no reference",
        ),
        case(lambda e: e.sagas.popitem(), {SAGAS}, id="a saga is missing"),
        case(conduct_a_placed_order, {SAGAS}, id="a saga of a placed order"),
        case(leave_a_saga_going_back, {SAGAS}, id="a saga is still going back"),
        case(leave_a_step_standing, {SAGAS}, id="a step of a saga is left"),
    ],
)
def test_it_goes_red(spoil: Spoil, red: set[str]) -> None:
    evidence = good()
    spoil(evidence)
    verdict = judged(evidence)
    assert failed(verdict) == red
    assert not verdict.passed


def test_it_names_what_is_wrong() -> None:
    evidence = good()
    settle_otherwise(evidence, outcome=OUT_OF_STOCK)
    (finding,) = (each for each in judged(evidence).findings if not each.passed)
    assert "cdnow-" in finding.says
    assert "is out_of_stock, not card_declined" in finding.says


def test_nothing_found_at_all_is_red() -> None:
    assert failed(judged(DemoEvidence())) == {
        ONCE, CHARGED, MONEY, STOCK, SAGAS, DEAD, RETRIED, CLAIMS, FILES,
    }  # fmt: skip


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
    evidence.retries.append(Retry(1, plain, "payments.capture", LetterSource("stock.reserved", 5, 5)))
    assert judged(evidence).passed


def test_figures_tell_of_retries_dead_letters_and_claim_checks() -> None:
    found = judged(good()).figures
    assert all(found.put_off[f"retry-{tier}"] for tier in TIERS)
    assert found.dead_letters == {"Undecodable": 3, "MissingHeader": 1, "KeyMismatch": 1}
    sizes = [each.size for each in references()]
    assert (found.by_reference, found.by_reference_bytes) == (len(sizes), sum(sizes))
