from __future__ import annotations

from collections.abc import Callable

import pytest

from demo.evidence import Evidence
from demo.postgres import judge_postgres
from demo.purchases import outcome, purchases

BOUGHT = purchases(40)
SAID = {purchase.order_id: outcome(purchase).value for purchase in BOUGHT}


def test_it_is_green_when_postgresql_says_what_kafka_says() -> None:
    assert judge_postgres(BOUGHT, Evidence(tracked=dict(SAID), in_postgres=dict(SAID))).passed


def missing(found: dict[str, str]) -> None:
    del found[BOUGHT[0].order_id]


def pending(found: dict[str, str]) -> None:
    found[BOUGHT[0].order_id] = "pending"


def another_reason(found: dict[str, str]) -> None:
    found[BOUGHT[0].order_id] = "out_of_luck"


def one_too_many(found: dict[str, str]) -> None:
    found["nobody-placed-it"] = "confirmed"


@pytest.mark.parametrize("wrong", [missing, pending, another_reason, one_too_many])
def test_it_goes_red(wrong: Callable[[dict[str, str]], None]) -> None:
    found = dict(SAID)
    wrong(found)
    finding = judge_postgres(BOUGHT, Evidence(tracked=dict(SAID), in_postgres=found))
    assert not finding.passed


def test_what_nobody_has_looked_at_is_red() -> None:
    assert not judge_postgres(BOUGHT, Evidence(tracked=dict(SAID))).passed
