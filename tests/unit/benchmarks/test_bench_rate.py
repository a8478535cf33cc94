import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kafka import COUNTED_SHARE_WARM, Sample, rate_of


def growth(ends: list[int], *, step: float = 1.0, cpu: float = 0.5) -> list[Sample]:
    return [Sample(at=i * step, end=end, cpu=i * cpu) for i, end in enumerate(ends)]


def test_neither_warm_up_nor_ready_events_count() -> None:
    slow_start_and_fast_end = growth([10, 20, 30, 300, 400, 500, 600, 800, 5000])[:-1]
    ready_at_once = Sample(at=7.1, end=1000, cpu=3.55)
    rate = rate_of([*slow_start_and_fast_end, ready_at_once], 1000)
    assert rate.per_second == pytest.approx(500 / 4)
    assert rate.cpu == pytest.approx(2.0 / 500 * 100_000)


def test_what_compiles_while_running_counts_from_half() -> None:
    slow_until_half = growth([*range(50, 500, 50), 500, 600, 700, 800, 900, 1000])
    assert rate_of(slow_until_half, 1000, COUNTED_SHARE_WARM).per_second == pytest.approx(100)
    assert rate_of(slow_until_half, 1000).per_second < 80


@pytest.mark.parametrize("ends", [[10, 1000], [10, 600, 800, 1000], [300, 500, 950, 1000]])
def test_a_topic_that_grew_by_leaps_has_no_rate(ends: list[int]) -> None:
    with pytest.raises(ValueError, match=r"grew by leaps \(\d steps in all\): give it more events"):
        rate_of(growth(ends), 1000)


@given(per_second=st.integers(1, 100_000), seconds=st.integers(20, 60), interval=st.sampled_from([0.25, 1.0]))
def test_steady_growth_has_its_own_rate(per_second: int, seconds: int, interval: float) -> None:
    steps = int(seconds / interval)
    ends = [round(per_second * interval * (i + 1) * 4) for i in range(steps)]
    rate = rate_of(growth(ends, step=interval), ends[-1])
    assert rate.per_second == pytest.approx(per_second * 4, rel=0.01)
