"""When a negative control has shown what it is there to show."""

from __future__ import annotations

from chaos.controls.scenarios import SCENARIOS
from chaos.controls.trial import Trial
from chaos.controls.verdict import judge
from chaos.records import Happened
from demo.findings import Finding

SCENARIO = SCENARIOS[0]
RED = Finding(SCENARIO.finds, passed=False, says="wrong")
OTHER = Finding("something else", passed=False, says="wrong too")


def trial(*red: Finding, confirmed: str = "seen") -> Trial:
    happened = Happened(kind="fault", target="worker-1", began=1.0, ended=2.0, confirmed=confirmed)
    return Trial(happened, list(red))


def test_green_as_it_is_and_red_with_the_control() -> None:
    assert judge(SCENARIO, trial(), trial(RED)).passed
    assert judge(SCENARIO, trial(), trial(OTHER, RED)).passed


def test_a_control_that_stays_green_has_shown_nothing() -> None:
    assert not judge(SCENARIO, trial(), trial()).passed


def test_red_for_another_reason_has_shown_nothing() -> None:
    assert not judge(SCENARIO, trial(), trial(OTHER)).passed


def test_red_without_the_control_has_shown_nothing() -> None:
    assert not judge(SCENARIO, trial(RED), trial(RED)).passed
    assert not judge(SCENARIO, trial(OTHER), trial(RED)).passed


def test_a_fault_that_was_not_confirmed_has_shown_nothing() -> None:
    assert not judge(SCENARIO, trial(confirmed=""), trial(RED)).passed
    assert not judge(SCENARIO, trial(), trial(RED, confirmed="")).passed
