"""How long a lane rests between transactions, as a table."""

import pytest

from streams.policy.pacing import LONGEST_REST, rest


@pytest.mark.parametrize(
    ("spent", "since", "linger", "expected"),
    [
        pytest.param(0.03, 0.0, 0.0, 0.06, id="twice as long as the last one took"),
        pytest.param(0.03, 0.01, 0.0, 0.05, id="what has passed since counts"),
        pytest.param(5.0, 0.0, 0.0, LONGEST_REST, id="never longer than that"),
        pytest.param(0.03, 0.03, 0.05, 0.05, id="as long as is set at least"),
        pytest.param(0.0, 1e9, 0.05, 0.05, id="before the first one as long as is set"),
        pytest.param(-60.0, 0.0, 0.0, 0.0, id="the clock was set back during the transaction"),
        pytest.param(0.03, -60.0, 0.0, 0.06, id="the clock was set back since"),
    ],
)
def test_a_rest_is(spent: float, since: float, linger: float, expected: float) -> None:
    assert rest(spent, since, linger) == pytest.approx(expected)


def test_a_lane_that_was_idle_does_not_rest() -> None:
    assert rest(0.03, 0.06, 0.0) <= 0
