from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rate import WARM_UP, Sample, rate_of


def growth(ends: list[int], *, step: float = 1.0, cpu: float = 0.5) -> list[Sample]:
    return [Sample(at=i * step, end=end, cpu=i * cpu) for i, end in enumerate(ends)]


def test_what_comes_before_the_end_of_the_warm_up_does_not_count() -> None:
    slow_start = growth([10, 20, 30, 300, 400, 600, 800, 1000])
    rate = rate_of(slow_start, 1000)
    assert rate.per_second == pytest.approx(700 / 4)
    assert rate.cpu == pytest.approx(2.0 / 700 * 100_000)


def test_markers_of_transactions_are_no_events() -> None:
    # Each transaction of 100 events ends with 4 markers.
    with_markers = growth([104 * number for number in range(1, 11)])
    assert rate_of(with_markers, 1000).per_second == pytest.approx(100)


def test_a_topic_that_grew_by_leaps_has_no_rate() -> None:
    with pytest.raises(ValueError, match=r"grew by half at once \(2 steps in all\): give it more events"):
        rate_of(growth([10, 1000]), 1000)


@given(per_second=st.integers(1, 100_000), seconds=st.integers(10, 60), interval=st.sampled_from([0.25, 1.0]))
def test_steady_growth_has_its_own_rate(per_second: int, seconds: int, interval: float) -> None:
    steps = int(seconds / interval)
    ends = [round(per_second * interval * (i + 1) * 4) for i in range(steps)]
    rate = rate_of(growth(ends, step=interval), ends[-1])
    assert rate.per_second == pytest.approx(per_second * 4, rel=0.1)
    assert 0 < WARM_UP < 0.5
