"""What the workflows section gives its contenders, and how it reports their results."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agents.gateway.cards import DECLINED
from agents.gateway.wire import Charged, Refunded
from agents.payments.model import capture_operation, refund_operation
from benchmarks import workflows
from benchmarks.latency import Latency
from benchmarks.peers.shop import charge_of, refund_of
from benchmarks.sections import Context, NotMeasured
from benchmarks.workflows import engines
from benchmarks.workflows.contest import Conducted, Contender, SubmittedOrders, judged, steady_rate
from benchmarks.workflows.engines import temporal_program
from benchmarks.workflows.shop import as_json, evidence_of
from demo.evidence import DemoEvidence
from demo.purchases import ExpectedOutcome, Purchase, order, outcome, purchases, receipts, units_by_sku

BOUGHT = purchases(300)
CONFIRMED = [each for each in BOUGHT if outcome(each) is ExpectedOutcome.CONFIRMED]
AT = datetime(2026, 1, 31, tzinfo=UTC).isoformat()


def evidence(*, settled: dict[str, str] | None = None) -> DemoEvidence:
    """What the tables and the gateway say when all has gone as it should."""
    gone = units_by_sku(map(order, CONFIRMED))
    stock = []
    for each in receipts():
        shipped = gone[each.sku]
        level = {"received": each.units, "on_hand": each.units - shipped, "reserved": 0, "shipped": shipped}
        stock.append({"sku": each.sku, **level})
    found = evidence_of(settled or {each.order_id: outcome(each).value for each in BOUGHT}, stock, BOUGHT)
    for each in BOUGHT:
        if each.cents and outcome(each) in (ExpectedOutcome.CONFIRMED, ExpectedOutcome.NOWHERE):
            name = f"capture:{each.order_id}"
            found.ledger.append(Charged(name, name, "captured", "", each.cents, "tok_accepted", AT))
            if outcome(each) is ExpectedOutcome.NOWHERE:
                back = Refunded("r", f"refund:{each.order_id}", name, "refunded", each.cents, AT)
                found.ledger.append(back)
    return found


class Canned:
    """A contender that is done at once."""

    def __init__(self, found: DemoEvidence | None = None, rate: float = 400.0) -> None:
        self.found = found or DemoEvidence()
        self.rate = rate
        self.steady: list[tuple[int, float]] = []

    async def burst(self, bought: list[Purchase]) -> SubmittedOrders:
        count = len(bought)
        return SubmittedOrders(count, count / self.rate, 0.002 * count, {"server": 0.001 * count})

    async def latency(self, bought: list[Purchase], per_second: float) -> Latency:
        self.steady.append((len(bought), per_second))
        return Latency(len(bought), 0.02, 0.5, 0.6, 0.7)

    async def evidence(self) -> DemoEvidence:
        return self.found


def contender(canned: Canned, name: str = "canned", *, ours: bool = False) -> Contender:
    @asynccontextmanager
    async def start(context: Context, home: Path) -> AsyncIterator[Conducted]:
        yield canned

    return Contender(name, f"the {name} one", start, ours=ours)


async def nothing_wrong(*_: object) -> None:
    pass


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tmp_path, 1, quick=True, say=lambda _: None)


def test_an_engine_is_given_the_orders_of_the_demo() -> None:
    given = json.loads(as_json(BOUGHT))
    for purchase, plain in zip(BOUGHT, given, strict=True):
        placed = order(purchase)
        assert plain["order_id"] == placed.order_id
        assert Counter(dict(zip(plain["skus"], plain["units"], strict=True))) == units_by_sku([placed])
        outside = placed.total_cents, placed.card, placed.country
        assert (plain["cents"], plain["card"], plain["country"]) == outside
    assert any(plain["card"] == DECLINED for plain in given)


def test_an_engine_asks_for_the_sagas_operations() -> None:
    (plain,) = json.loads(as_json(BOUGHT[:1]))
    placed = order(BOUGHT[0])
    assert charge_of(plain)["operation"] == capture_operation(placed)
    refund = {"operation": refund_operation(placed), "charge_operation": capture_operation(placed)}
    assert refund_of(plain) == refund


async def test_what_adds_up_is_accepted() -> None:
    await judged(Canned(evidence()), BOUGHT)


def settled(*bought: Purchase, as_: str = "") -> DemoEvidence:
    return evidence(settled={each.order_id: as_ or outcome(each).value for each in bought})


def with_a_unit_reserved() -> DemoEvidence:
    found = evidence()
    sku = next(iter(found.stock))
    found.stock[sku] = found.stock[sku].reserve(1)
    return found


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (settled(*BOUGHT, as_="confirmed"), "each with the outcome its data calls for"),
        (settled(*BOUGHT[1:]), "every order settled exactly once"),
        (with_a_unit_reserved(), "received = on hand"),
    ],
    ids=["another outcome", "an order without an end", "stock that does not add up"],
)
async def test_what_does_not_add_up_is_noticed(found: DemoEvidence, wrong: str) -> None:
    with pytest.raises(NotMeasured, match=wrong):
        await judged(Canned(found), BOUGHT)


@pytest.mark.parametrize(
    ("burst", "rate"), [(800.0, 100.0), (125.0, 100.0), (124.0, 70.0), (50.0, 30.0), (3.0, 5.0)]
)
def test_who_cannot_keep_up_gets_a_lower_rate(burst: float, rate: float) -> None:
    assert steady_rate(burst) == rate


def test_a_slower_one_is_measured_at_its_own_rate(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows, "judged", nothing_wrong)
    fast, slow = Canned(), Canned(rate=50.0)
    both = [contender(fast, "fast", ours=True), contender(slow, "slow")]
    for each in both:
        workflows.take(context, each, 0)
    assert (fast.steady, slow.steady) == ([(50, 10.0), (500, 100.0)], [(50, 10.0), (150, 30.0)])
    found = workflows.section(both)
    assert [list(row) for row in found.tables[0].rows] == [
        ["the fast one", "400", "1.00", "2.00", "1.00 server"],
        ["the slow one", "50", "0.12", "2.00", "1.00 server"],
    ]
    assert [list(row) for row in found.tables[1].rows] == [
        ["the fast one", "20", "500", "100", "20", "500"],
        ["the slow one", "20", "500", "30", "20", "500"],
    ]
    assert found.notes[-1].endswith("so theirs is the latency at fewer: the slow one.")


def test_a_failure_is_shown_and_others_measured(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [contender(Canned(), "good", ours=True), contender(Canned(), "bad")]
    monkeypatch.setattr(workflows, "judged", nothing_wrong)
    workflows.take(context, both[0], 0)
    monkeypatch.undo()
    workflows.take(context, both[1], 0)
    found = workflows.section(both)
    assert list(found.tables[0].rows[1]) == ["the bad one", "-", "-", "-", "-"]
    assert found.notes[-1].startswith("Not measured: the bad one: every order settled exactly once")


def test_without_go_there_is_no_server_of_temporal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEADFAUST_CACHE", str(tmp_path))
    monkeypatch.setattr(engines.shutil, "which", lambda *_, **__: None)
    with pytest.raises(NotMeasured, match="no Go toolchain"):
        temporal_program(lambda _: None)
