"""Whether failures are accounted for: retries, dead letters and payloads by reference. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from demo.failures import TIERS, DeadLetter, LetterSource, Reference, Retry, with_files
from demo.findings import Finding, finding
from demo.purchases import ExpectedOutcome, Purchase, attached_bytes, orchestrated, outcome
from demo.trouble import Poison, outages, poison, tiers
from streams.saga.state import SagaRow

#: No record is larger, by what topics take: a file over it cannot be in one.
_TOO_LARGE = 1_000_000
#: Attempts that a killed worker has made at the gateway may never have been committed: so many cards prove
#: nothing of a tier.
_IN_VAIN = 2


def poison_of(purchases: Iterable[Purchase]) -> list[Poison]:
    """Messages that were sent beside these orders."""
    return [bad for purchase in purchases if (bad := poison(purchase)) is not None]


def judge_dead_letters(
    letters: Sequence[DeadLetter], expected: Sequence[Poison], sent: Mapping[str, int]
) -> Finding:
    """Every poisonous record, as often as it was sent, is a dead letter for its reason; nothing else is."""
    owed = Counter[tuple[str, str]]()
    for bad in expected:
        key = (bad.record.key or b"").decode()
        owed[key, bad.error] += max(1, sent.get(key, 0))
    times = Counter(letters)
    found = Counter((letter.key, letter.error) for letter in times)
    wrong = {
        "missing": [f"{key}: {error}" for key, error in (owed - found).elements()],
        "unexpected": [f"{key}: {error}" for key, error in (found - owed).elements()],
        "there more than once": [str(letter) for letter, count in times.items() if count > 1],
    }
    reasons = Counter(letter.error for letter in letters)
    by_reason = ", ".join(f"{count:,} {error}" for error, count in sorted(reasons.items()))
    unexpected = len(wrong["unexpected"])
    says = f"{len(letters):,} dead letters ({by_reason or 'none'}), unexpected: {unexpected}"
    return finding("every dead letter is accounted for", wrong, says)


def judge_retries(purchases: Sequence[Purchase], retries: Sequence[Retry], settled: set[str]) -> Finding:
    """A message goes up the tiers one by one, each once, and comes to its end; no tier that a card calls for
    is left out. More retries than cards call for are no fault: a call may take too long.
    """
    climbed: dict[tuple[str, str, LetterSource], list[int]] = defaultdict(list)
    for each in retries:
        climbed[each.handler, each.key, each.source].append(each.tier)
    placed = {purchase.order_id for purchase in purchases}
    called_for = Counter(tier for purchase in purchases for tier in tiers(purchase))
    found = Counter(each.tier for each in retries)
    wrong = {
        "tiers that nothing went through": [
            f"tier {tier}" for tier in TIERS if called_for[tier] > _IN_VAIN and not found[tier]
        ],
        "retried out of turn": [
            f"{handler} of {key}: tiers {', '.join(map(str, sorted(went)))}"
            for (handler, key, _), went in climbed.items()
            if sorted(went) != list(range(1, len(went) + 1))
        ],
        "retried and never settled": sorted({each.key for each in retries} & placed - settled),
    }
    troubled = sum(outages(purchase) > 0 for purchase in purchases)
    by_tier = ", ".join(f"{found[tier]:,} in tier {tier}" for tier in TIERS)
    says = f"{troubled:,} cards call for an unavailable gateway; postponed: {by_tier}"
    return finding("every retry took its turn and came to an end", wrong, says)


def judge_references(purchases: Sequence[Purchase], found: Sequence[Reference], attached: float) -> Finding:
    """Every payload by reference is there, whole; those that no record could hold are among them."""
    there = {(each.topic, each.key) for each in found}
    large = [purchase for purchase in purchases if attached_bytes(purchase, attached) > _TOO_LARGE]
    wrong = {
        "missing or altered": [each.fault for each in found if each.fault],
        "not by reference": [
            f"{purchase.order_id} in {topic}"
            for purchase in large
            for topic in with_files(purchase)
            if (topic, purchase.order_id) not in there
        ],
    }
    size = sum(each.size for each in found)
    says = f"{len(found):,} payloads by reference, {size:,} bytes, each fetched and verified by SHA-256"
    return finding("every claim check was honoured", wrong, says)


def judge_sagas(purchases: Sequence[Purchase], sagas: Mapping[str, SagaRow]) -> Finding:
    """Every submitted order has one saga, which ended as its data calls for, with no work left standing of
    one that was undone; placed orders have none.
    """
    owed = {purchase.order_id: outcome(purchase) for purchase in purchases if orchestrated(purchase)}
    ends = {
        name: "completed" if end is ExpectedOutcome.CONFIRMED else "compensated" for name, end in owed.items()
    }
    wrong = {
        "without a saga": sorted(owed.keys() - sagas.keys()),
        "with a saga and submitted by no client": sorted(sagas.keys() - owed.keys()),
        "ended otherwise": [
            f"{name} is {sagas[name].status}, not {end}"
            for name, end in ends.items()
            if name in sagas and sagas[name].status != end
        ],
        "with work left standing": [
            f"{name}: {step.name}"
            for name, end in ends.items()
            if end == "compensated" and name in sagas
            for step in sagas[name].steps
            if step.status not in ("pending", "failed", "compensated")
        ],
    }
    statuses = Counter(row.status for row in sagas.values())
    by_status = ", ".join(f"{count:,} {status}" for status, count in sorted(statuses.items()))
    says = f"{len(owed):,} of {len(purchases):,} orders were orchestrated: {by_status or 'no saga'}"
    return finding("every saga ended once, as its order's data calls for", wrong, says)
