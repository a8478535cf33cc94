"""Each breakage of a recorded run turns the checker red, and of what is broken it says so."""

import pytest
from good_run import BEGAN, good, red

from chaos.controls.recorded import BREAKAGES, WAITS, Breakage, hold_a_command
from chaos.judges.lateness import explained

pytestmark = [
    pytest.mark.slow("two seconds of recorded runs"),
    pytest.mark.promise("recorded-controls"),
]


@pytest.mark.parametrize("breakage", [pytest.param(each, id=each.says) for each in BREAKAGES])
def test_it_is_found(breakage: Breakage) -> None:
    evidence = good()
    breakage.make(evidence)
    assert breakage.finds in red(evidence)


def test_a_stuck_saga_is_found_among_endless_faults() -> None:
    evidence = good()
    hold_a_command(evidence)
    assert all(explained(at, at + 30, evidence.run) for at in range(int(BEGAN), int(BEGAN) + 50))
    assert red(evidence) == {WAITS}
