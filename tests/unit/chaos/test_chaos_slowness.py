"""How much longer workers took than on a machine of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from chaos.slowness import MOST, Slowness
from streams.local.patience import Used

Figures = Mapping[int, tuple[float, float]]


def factor(before: Figures, after: Figures) -> float:
    figures = before

    def used(pids: Iterable[int]) -> Used:
        (pid,) = pids
        return Used(*figures[pid])

    slowness = Slowness(lambda: list(figures), used)
    figures = after
    return slowness.factor()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({1: (5.0, 1.0)}, {1: (7.0, 1.0)}, 1.0),
        ({1: (5.0, 1.0)}, {1: (7.0, 3.0)}, 2.0),
        ({1: (5.0, 1.0)}, {1: (5.0, 1.0)}, 1.0),
        ({1: (5.0, 1.0)}, {1: (6.0, 40.0)}, MOST),
    ],
    ids=["never waited", "waited as long as it ran", "did nothing", "hardly ran"],
)
def test_waiting_is_counted_beside_running(before: Figures, after: Figures, expected: float) -> None:
    assert factor(before, after) == expected


def test_a_process_that_has_ended_does_not_count_and_a_new_one_counts_from_its_start() -> None:
    assert factor({1: (50.0, 90.0)}, {2: (2.0, 1.0)}) == 1.5
