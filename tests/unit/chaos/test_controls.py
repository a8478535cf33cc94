"""When a negative control has shown what it is there to show."""

import pytest

from chaos.controls.scenarios import SCENARIOS
from chaos.controls.trial import Trial, judge
from chaos.rig.records import Happened
from demo.findings import Finding

SCENARIO = SCENARIOS[0]
RED = Finding(SCENARIO.finds, passed=False, says="wrong")
OTHER = Finding("something else", passed=False, says="wrong too")


def trial(*red: Finding, confirmed: str = "seen") -> Trial:
    happened = Happened(kind="fault", target="worker-1", began=1.0, ended=2.0, confirmed=confirmed)
    return Trial(happened, list(red))


@pytest.mark.parametrize(
    ("as_it_is", "with_control", "passed"),
    [
        pytest.param(trial(), trial(RED), True, id="green, and red with the control"),
        pytest.param(trial(), trial(OTHER, RED), True, id="red for another reason too"),
        pytest.param(trial(), trial(), False, id="the control stays green"),
        pytest.param(trial(), trial(OTHER), False, id="red for another reason alone"),
        pytest.param(trial(RED), trial(RED), False, id="red without the control"),
        pytest.param(trial(OTHER), trial(RED), False, id="otherwise red without the control"),
        pytest.param(trial(confirmed=""), trial(RED), False, id="no fault as it is"),
        pytest.param(trial(), trial(RED, confirmed=""), False, id="no fault with the control"),
    ],
)
def test_what_a_control_has_shown(as_it_is: Trial, with_control: Trial, *, passed: bool) -> None:
    assert judge(SCENARIO, as_it_is, with_control).passed is passed
