"""How old a copy of changelogs may be, and when an idle owner may say that its own is current."""

from typing import Any

import pytest

from streams.errors import StoreTooOld
from streams.lane.recovery import touch
from streams.policy.freshness import Freshness, is_too_old
from streams.ports import TP
from streams.testing.clock import ManualClock
from streams.testing.store import MemoryStores

FIRST, SECOND = TP("app-counts-changelog", 0), TP("app-lane-changelog", 0)


@pytest.mark.parametrize(("age", "too_old"), [(0.0, False), (50.0, False), (50.1, True), (99.0, True)])
def test_a_copy_is_too_old_after_half_the_deletion_retention(age: float, too_old: bool) -> None:
    assert is_too_old(1000.0, 1000.0 + age, delete_retention=100.0) is too_old
    assert is_too_old(1000.0, 1000.0 - age, delete_retention=100.0) is too_old, "of a clock set back"


def test_a_copy_that_is_read_too_slowly_is_given_up() -> None:
    freshness = Freshness(1000.0, 100.0)
    freshness.check(1050.0)
    with pytest.raises(StoreTooOld):
        freshness.check(1050.1)


def test_a_copy_is_current_as_of_the_question_it_reached() -> None:
    freshness = Freshness(1000.0, 100.0)
    freshness.expect(1020.0, {FIRST: 7, SECOND: 3})
    assert not freshness.has_reached({FIRST: 7, SECOND: 2}.__getitem__)
    assert (freshness.current_at, freshness.is_awaited) == (1000.0, True)
    assert freshness.has_reached({FIRST: 7, SECOND: 3}.__getitem__)
    assert (freshness.current_at, freshness.is_awaited) == (1020.0, False)
    assert not freshness.has_reached({FIRST: 9, SECOND: 9}.__getitem__), "nobody has asked again"


class Ends:
    """A cluster that tells where changelogs end."""

    def __init__(self, **ends: int) -> None:
        self.ends = {FIRST: ends["first"], SECOND: ends["second"]}

    async def end_offsets(self, tps: Any) -> dict[TP, int]:
        return {tp: self.ends[tp] for tp in tps}


@pytest.mark.parametrize(
    ("first", "second", "current"),
    [
        pytest.param(7, 3, True, id="at the ends"),
        pytest.param(8, 4, True, id="behind them is a marker"),
        pytest.param(9, 3, False, id="a record more"),
        pytest.param(7, 5, False, id="a record more in the other"),
    ],
)
async def test_an_idle_owner_is_current_only_if_it_has_all(first: int, second: int, current: bool) -> None:
    store = MemoryStores().open(0)
    store.apply([], {FIRST: 7, SECOND: 3}, current_at=500.0)
    cluster: Any = Ends(first=first, second=second)
    await touch(store, cluster, {FIRST: "counts", SECOND: "lane"}, ManualClock(1000.0))
    assert store.current_at() == (1000.0 if current else 500.0)
