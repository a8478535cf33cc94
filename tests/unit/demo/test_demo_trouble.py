from collections import Counter
from dataclasses import dataclass

import msgspec
import pytest

from agents.choreographies import payment_first, stock_first
from agents.gateway.cards import behaviour
from agents.gateway.testing import FakeGateway
from agents.messages import OrderPlaced
from demo.purchases import ROWS, ExpectedOutcome, order, outcome, purchases
from demo.trouble import PoisonKind, outages, poison, spoiled, tiers, troubled_order
from schemas import latest
from streams.engine.staging.payloads import checked, decoded
from streams.errors import PermanentError
from streams.model.application import Application
from streams.model.choreography import Choreography
from streams.model.codecs import Schemas, avro
from streams.model.layout import Layout
from streams.model.policy.retry import FailureKind as ErrorKind
from streams.model.policy.retry import GiveUp, Later, RetryPolicy, decide
from streams.ports import Headers

ALL = purchases()
FEW = ALL[:300]


@dataclass
class Came:
    key: bytes | None
    value: bytes | None
    headers: Headers
    topic: str = OrderPlaced.TOPIC
    partition: int = 0
    offset: int = 0
    timestamp: int = 0


def why_buried(record: Came, app: Application) -> str:
    route = app.routes[record.topic]
    with pytest.raises(PermanentError) as buried:
        decoded(route, record, checked(route, record))
    return type(buried.value).__name__


@pytest.mark.parametrize("choreography", [stock_first, payment_first])
@pytest.mark.parametrize("kind", list(PoisonKind))
def test_poison_is_buried_for_the_expected_reason(choreography: Choreography, kind: PoisonKind) -> None:
    gateway = {"gateway": FakeGateway()}
    app = Application(Layout("app", 4, 2), choreography, avro(latest, Schemas()), resources=gateway)
    for purchase in ALL[:40]:
        bad = spoiled(purchase, kind)
        assert bad.topic == OrderPlaced.TOPIC
        assert why_buried(Came(*bad.record), app) == bad.error


def test_a_short_run_has_every_kind_of_poison() -> None:
    found = [bad for purchase in FEW if (bad := poison(purchase))]
    assert [bad.kind for bad in found] == list(PoisonKind)


def test_poison_has_the_keys_of_orders() -> None:
    ids = {purchase.order_id.encode() for purchase in ALL}
    found = [bad for purchase in ALL if (bad := poison(purchase))]
    assert len({bad.record.key for bad in found}) == len(found) == ROWS // 75
    assert all((bad.record.key in ids) is (bad.kind is not PoisonKind.NAMELESS) for bad in found)


@pytest.mark.parametrize("rows", [2_000, 20_000, ROWS])
def test_about_one_order_in_a_hundred_meets_an_unavailable_gateway(rows: int) -> None:
    times = Counter(outages(purchase) for purchase in ALL[:rows])
    assert set(times) == {0, 1, 2, 3, 4, 5}
    assert 0.008 < 1 - times[0] / rows < 0.012


def test_trouble_changes_nothing_of_an_order_but_its_card() -> None:
    for purchase in ALL[:5000]:
        placed = troubled_order(purchase)
        assert msgspec.structs.replace(placed, card="") == msgspec.structs.replace(order(purchase), card="")
        if outages(purchase):
            assert outcome(purchase) is ExpectedOutcome.CONFIRMED
            assert behaviour(placed.card).outages == outages(purchase)
            assert not behaviour(placed.card).decline
        else:
            assert placed == order(purchase)


def test_the_tiers_are_those_of_the_policy() -> None:
    for purchase in ALL[:5000]:
        decisions = [
            decide(ErrorKind.TRANSIENT, attempt, policy=RetryPolicy(), now=0.0)
            for attempt in range(1, outages(purchase) + 1)
        ]
        assert not any(isinstance(decision, GiveUp) for decision in decisions)
        assert [each.tier for each in decisions if isinstance(each, Later)] == list(tiers(purchase))


def test_a_short_run_goes_through_every_tier() -> None:
    assert {tier for purchase in FEW for tier in tiers(purchase)} == {1, 2, 3}
