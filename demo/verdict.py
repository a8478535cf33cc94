"""Whether everything adds up: pure, from the purchases and the evidence alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256

import msgspec

from agents.gateway.wire import Charged, Refunded
from agents.messages import Order
from demo.accounts import judge_dead_letters, judge_references, judge_retries, judge_sagas, poison_of
from demo.evidence import DemoEvidence
from demo.failures import TIERS
from demo.findings import Finding, finding
from demo.purchases import (
    LARGEST,
    ExpectedOutcome,
    Purchase,
    attachments,
    orchestrated,
    order,
    outcome,
    receipts,
    units_by_sku,
)
from demo.trouble import troubled_order


class Figures(msgspec.Struct, frozen=True):
    """What was found, in numbers. Money in cents, stock in pieces; retries by tier, dead letters by error,
    sagas by status.
    """

    settled: int
    confirmed: int
    cancelled: dict[str, int]
    confirmed_cents: int
    captured_cents: int
    refunded_cents: int
    received: int
    on_hand: int
    reserved: int
    shipped: int
    put_off: dict[str, int] = {}
    dead_letters: dict[str, int] = {}
    by_reference: int = 0
    by_reference_bytes: int = 0
    sagas: dict[str, int] = {}


class Verdict(msgspec.Struct, frozen=True):
    """All findings and the figures behind them."""

    findings: list[Finding]
    figures: Figures

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(finding.passed for finding in self.findings)


def judge(
    purchases: Sequence[Purchase],
    evidence: DemoEvidence,
    *,
    attached: float = 0.0,
    trouble: bool = False,
    sagas: bool = False,
) -> Verdict:
    """Hold the evidence against what the purchases call for; `attached` is the share that came with files.
    With `trouble` some cards met an unavailable gateway, and poison was sent (`demo.trouble`); with `sagas`
    half of the orders were submitted.
    """
    place = troubled_order if trouble else order
    settled = {each.order.order_id for each in evidence.settlements}
    findings = [
        _settled_once(purchases, evidence),
        _as_called_for(purchases, evidence, place),
        _charged_once(purchases, evidence),
        _money(purchases, evidence),
        _stock(purchases, evidence),
        _handled(evidence),
        judge_dead_letters(evidence.dead_letters, poison_of(purchases) if trouble else [], evidence.poison),
    ]
    if sagas:
        findings.append(judge_sagas(purchases, evidence.sagas))
    if trouble:
        findings.append(judge_retries(purchases, evidence.retries, settled))
    if attached:
        findings.append(judge_references(purchases, evidence.references, attached))
        findings.append(judge_files(purchases, evidence.packed, attached))
    return Verdict(findings, _figures(evidence))


def _settled_once(purchases: Sequence[Purchase], evidence: DemoEvidence) -> Finding:
    wanted = {purchase.order_id for purchase in purchases}
    times = Counter(each.order.order_id for each in evidence.settlements)
    ids = Counter(each.message_id for each in evidence.settlements)
    wrong = {
        "never settled": sorted(wanted - times.keys()),
        "settled more than once": sorted(name for name, count in times.items() if count > 1),
        "settled but never placed": sorted(times.keys() - wanted),
        "repeated message ids": sorted(name for name, count in ids.items() if count > 1),
    }
    says = f"{len(wanted):,} orders, {len(evidence.settlements):,} settlements"
    return finding("every order settled exactly once", wrong, says)


def _as_called_for(
    purchases: Sequence[Purchase], evidence: DemoEvidence, place: Callable[[Purchase], Order]
) -> Finding:
    by_id = {purchase.order_id: purchase for purchase in purchases}
    judged = [each for each in evidence.settlements if each.order.order_id in by_id]
    outcomes, contents = [], []
    for each in judged:
        purchase = by_id[each.order.order_id]
        if each.outcome != (called := outcome(purchase).value):
            outcomes.append(f"{purchase.order_id} is {each.outcome}, not {called}")
        if each.order != place(purchase):
            contents.append(purchase.order_id)
    wrong = {"another outcome": outcomes, "another order than was placed": contents}
    kinds = Counter(each.outcome for each in judged)
    says = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    return finding("each with the outcome its data calls for", wrong, says)


def _charged_once(purchases: Sequence[Purchase], evidence: DemoEvidence) -> Finding:
    """Also order by order: what stays taken is what the order costs, or nothing."""
    net: dict[str, int] = defaultdict(int)
    captures, refunds = Counter[str](), Counter[str]()
    for row in evidence.ledger:
        match row:
            case Charged(status="captured"):
                captures[_order_of(row.operation)] += 1
                net[_order_of(row.operation)] += row.cents
            case Refunded():
                refunds[_order_of(row.charge_operation)] += 1
                net[_order_of(row.charge_operation)] -= row.cents
    due = {p.order_id: p.cents if outcome(p) is ExpectedOutcome.CONFIRMED else 0 for p in purchases}
    wrong = {
        "charged more than once": [name for name, count in captures.items() if count > 1],
        "refunded more than once": [name for name, count in refunds.items() if count > 1],
        "charged but never placed": sorted((captures | refunds).keys() - due.keys()),
        "left with another sum than due": [
            f"{name} with {net[name]}, not {cents}" for name, cents in due.items() if net[name] != cents
        ],
    }
    says = f"{captures.total():,} charges and {refunds.total():,} refunds at the gateway"
    return finding("no order charged twice", wrong, says)


def _order_of(operation: str) -> str:
    return operation.partition(":")[2]


def _money(purchases: Sequence[Purchase], evidence: DemoEvidence) -> Finding:
    found = _figures(evidence)
    kept = found.captured_cents - found.refunded_cents
    by_saga = {p.order_id for p in purchases if orchestrated(p)}
    halves = {}
    for name, half in (("orchestrated", True), ("choreographed", False)):
        due = sum(
            p.cents for p in purchases if outcome(p) is ExpectedOutcome.CONFIRMED and orchestrated(p) is half
        )
        halves[name] = due, _kept(evidence, by_saga, inside=half)
    wrong = {
        "difference from the confirmed orders": _difference(kept, found.confirmed_cents),
        **{
            f"difference of the {name} half from the file": _difference(has, due)
            for name, (due, has) in halves.items()
        },
    }
    split = ", ".join(f"{has:,} {name}" for name, (_, has) in halves.items())
    says = (
        f"{found.captured_cents:,} - {found.refunded_cents:,} = {kept:,} cents ({split}),"
        f" confirmed orders are worth {found.confirmed_cents:,}"
    )
    return finding("captured - refunded = value of confirmed orders", wrong, says)


def _kept(evidence: DemoEvidence, some: Collection[str], *, inside: bool) -> int:
    """Cents that were captured and not given back, of some orders or of all others."""

    def of(operation: str) -> bool:
        return (_order_of(operation) in some) is inside

    cents = 0
    for row in evidence.ledger:
        match row:
            case Charged(status="captured") if of(row.operation):
                cents += row.cents
            case Refunded() if of(row.charge_operation):
                cents -= row.cents
    return cents


def _stock(purchases: Sequence[Purchase], evidence: DemoEvidence) -> Finding:
    came = Counter({receipt.sku: receipt.units for receipt in receipts()})
    leaves = units_by_sku(order(p) for p in purchases if outcome(p) is ExpectedOutcome.CONFIRMED)
    wrong: dict[str, list[str]] = defaultdict(list)
    for sku in sorted({*came, *leaves, *evidence.received, *evidence.shipped, *evidence.stock}):
        row = evidence.stock.get(sku)
        on_hand, reserved = (row.on_hand, row.reserved) if row else (0, 0)
        in_row = (row.received, row.shipped) if row else (0, 0)
        received, shipped = evidence.received[sku], evidence.shipped[sku]
        if received != on_hand + shipped:
            wrong["received is not on hand + shipped"].append(f"{sku}: {received}, {on_hand} + {shipped}")
        if in_row != (received, shipped):
            wrong["the table counts otherwise"].append(f"{sku}: {in_row}, not {(received, shipped)}")
        if reserved:
            wrong["still reserved"].append(f"{sku}: {reserved}")
        if (received, shipped) != (came[sku], leaves[sku]):
            wrong["not what the file calls for"].append(
                f"{sku}: received and shipped {received, shipped}, not {came[sku], leaves[sku]}"
            )
    found = _figures(evidence)
    says = f"{found.received:,} = {found.on_hand:,} + {found.shipped:,} pieces, over {len(came)} SKUs"
    return finding("received = on hand + shipped", wrong, says)


def judge_files(
    purchases: Sequence[Purchase],
    packed: Mapping[str, list[tuple[str, str]]],
    attached: float,
    largest: int = LARGEST,
) -> Finding:
    """Whether each file came out once, as it was put in: `packed` has name and SHA-256, by order."""
    wrong: dict[str, list[str]] = defaultdict(list)
    sizes: list[int] = []
    parcels = dict(packed)
    for purchase in purchases:
        put_in = attachments(purchase, attached, largest)
        sizes += (len(each.data) for each in put_in)
        wanted = [(each.name, sha256(each.data).hexdigest()) for each in put_in]
        found = parcels.pop(purchase.order_id, [])
        if len(found) < len(wanted):
            wrong["not in their parcel"].append(purchase.order_id)
        elif len(found) > len(wanted):
            wrong["packed more than once"].append(purchase.order_id)
        elif found != wanted:
            wrong["not what was put in"].append(purchase.order_id)
    wrong["packed but never placed"].extend(sorted(parcels))
    span = f", of {min(sizes):,} to {max(sizes):,}" if sizes else ""
    says = f"{len(sizes):,} files, {sum(sizes):,} bytes{span}, by SHA-256"
    return finding("every file came out as it was put in", wrong, says)


def _figures(evidence: DemoEvidence) -> Figures:
    outcomes = Counter(each.outcome for each in evidence.settlements)
    confirmed = outcomes.pop(ExpectedOutcome.CONFIRMED.value, 0)
    captured = (row for row in evidence.ledger if isinstance(row, Charged) and row.status == "captured")
    refunded = (row for row in evidence.ledger if isinstance(row, Refunded))
    good = (each for each in evidence.settlements if each.outcome == ExpectedOutcome.CONFIRMED.value)
    return Figures(
        settled=len(evidence.settlements),
        confirmed=confirmed,
        cancelled=dict(outcomes.most_common()),
        confirmed_cents=sum(each.order.total_cents for each in good),
        captured_cents=sum(row.cents for row in captured),
        refunded_cents=sum(row.cents for row in refunded),
        received=evidence.received.total(),
        on_hand=sum(row.on_hand for row in evidence.stock.values()),
        reserved=sum(row.reserved for row in evidence.stock.values()),
        shipped=evidence.shipped.total(),
        put_off={f"retry-{tier}": sum(each.tier == tier for each in evidence.retries) for tier in TIERS},
        dead_letters=dict(Counter(letter.error for letter in evidence.dead_letters)),
        by_reference=len(evidence.references),
        by_reference_bytes=sum(each.size for each in evidence.references),
        sagas=dict(Counter(row.status for row in evidence.sagas.values())),
    )


def _handled(evidence: DemoEvidence) -> Finding:
    left = [f"{count} in {topic}" for topic, count in sorted(evidence.unhandled.items()) if count]
    return finding("no message left unhandled", {"not handled": left}, "every message has been handled")


def _difference(one: int, other: int) -> list[str]:
    return [f"{one - other:+,} cents"] if one != other else []
