"""Latency by schedule: percentiles by rank, and a sender that is held up hides nothing."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.latency import Schedule, latency_of, percentile


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (0.999, 100), (1.0, 100)],
)
def test_a_percentile_is_a_value_that_was_seen(share: float, expected: int) -> None:
    assert percentile(range(1, 101), share) == expected


@given(st.lists(st.floats(0, 60), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_a_percentile_is_the_least_that_covers_its_share(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert sum(value <= found for value in ordered) >= share * len(ordered)
    assert sum(value < found for value in ordered) < share * len(ordered)


def test_latency_begins_when_a_message_was_due() -> None:
    schedule = Schedule(began=100.0, per_second=200)
    due = {"first": schedule.due(0), "second": schedule.due(1), "late": schedule.due(200)}
    found = latency_of(due, {"first": 100.5, "second": 100.505, "late": 103.0})
    assert (found.p50, found.p99, found.most) == pytest.approx((0.5, 2.0, 2.0))


async def test_no_message_goes_early_and_lateness_moves_no_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("benchmarks.latency.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("benchmarks.latency.asyncio", SimpleNamespace(sleep=sleep))
    schedule, went = Schedule(now, per_second=4), []
    async for number, due in schedule.moments(6):
        went.append((due, now))
        now += (
            0.75 if number == 1 else 0
        )  # held up: those that follow go at once, and their time runs already
    late = [(100.5, 101.0), (100.75, 101.0)]
    assert went == [(100.0, 100.0), (100.25, 100.25), *late, (101.0, 101.0), (101.25, 101.25)]
