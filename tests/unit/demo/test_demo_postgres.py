from collections.abc import Callable

import pytest

from demo.evidence import DemoEvidence
from demo.postgres import judge_postgres
from demo.purchases import outcome, purchases

BOUGHT = purchases(40)
STATUSES = {purchase.order_id: outcome(purchase).value for purchase in BOUGHT}


def test_it_is_green_when_postgresql_says_what_kafka_says() -> None:
    assert judge_postgres(BOUGHT, DemoEvidence(tracked=dict(STATUSES), in_postgres=dict(STATUSES))).passed


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda found: found.pop(BOUGHT[0].order_id), id="missing"),
        pytest.param(lambda found: found.update({BOUGHT[0].order_id: "pending"}), id="pending"),
        pytest.param(lambda found: found.update({BOUGHT[0].order_id: "out_of_luck"}), id="another reason"),
        pytest.param(lambda found: found.update(stranger="confirmed"), id="one too many"),
    ],
)
def test_it_goes_red(wrong: Callable[[dict[str, str]], object]) -> None:
    found = dict(STATUSES)
    wrong(found)
    assert not judge_postgres(BOUGHT, DemoEvidence(tracked=dict(STATUSES), in_postgres=found)).passed


def test_what_nobody_has_looked_at_is_red() -> None:
    assert not judge_postgres(BOUGHT, DemoEvidence(tracked=dict(STATUSES))).passed
