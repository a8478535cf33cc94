"""What lanes take of memory that is bounded for all of them."""

import pytest

from streams.system.shares import share_of
from streams.units import MIB


def test_a_few_lanes_take_as_much_as_is_of_use() -> None:
    assert share_of(1) == share_of(4) == share_of(8) == (8 * MIB, 8 * MIB, MIB)


@pytest.mark.parametrize("lanes", [1, 4, 8, 16, 64])
def test_many_lanes_take_no_more_together_than_a_few(lanes: int) -> None:
    share = share_of(lanes)
    assert lanes * share.write_buffer <= 64 * MIB
    assert lanes * share.fetch <= 64 * MIB
    assert lanes * share.partition_fetch <= 8 * MIB


def test_however_many_there_are_each_can_work() -> None:
    assert min(share_of(100_000)) >= MIB // 8
