"""The comparison's schedule: the same for every contestant, and with room for every fault."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.counting.schedule import FROZEN, MIX, SHORTEST, WORKERS, WorkerFault, schedule

SEEDS = st.integers(0, 1 << 32)
SECONDS = st.floats(SHORTEST, 600.0)


@given(SEEDS, SECONDS)
def test_every_fault_is_in_it_and_within_the_load(seed: int, seconds: float) -> None:
    due = schedule(seed, seconds)
    assert Counter(each.fault for each in due) == Counter(MIX)
    assert {each.worker for each in due} <= set(range(WORKERS))
    assert all(0 < each.at <= seconds for each in due)


@given(SEEDS, SECONDS)
def test_nothing_is_due_while_a_worker_is_frozen(seed: int, seconds: float) -> None:
    due = schedule(seed, seconds)
    for earlier, later in pairwise(due):
        assert later.at - earlier.at >= (FROZEN if earlier.fault is WorkerFault.FREEZE else 0)


def test_a_seed_repeats_it_and_another_one_does_not() -> None:
    assert schedule(1, 60.0) == schedule(1, 60.0)
    assert schedule(1, 60.0) != schedule(2, 60.0)


def test_too_short_a_load_is_refused() -> None:
    with pytest.raises(ValueError, match="have no room for the faults"):
        schedule(1, SHORTEST - 1)
