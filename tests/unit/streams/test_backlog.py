"""What lanes of a worker may hold in memory: each for itself, and all together."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.engine.staging.changes import Change
from streams.engine.staging.commit_order import CommitOrder
from streams.engine.staging.entry import CHANGE_BYTES, ENTRY_BYTES, SEND_BYTES, Entry
from streams.engine.way.intake import BacklogLimit
from streams.model.application import LaneOptions
from streams.model.layout import Layout
from streams.ports import TP, Outgoing

pytestmark = pytest.mark.promise("bounded-memory")

MIB = 1 << 20
DELIVERY = LaneOptions(
    max_backlog=100, max_worker_backlog=300, max_backlog_bytes=10 * MIB, max_worker_backlog_bytes=30 * MIB
)


def holding(messages: int, *, size: int = 1) -> CommitOrder:
    sequences = CommitOrder(Layout("app", 1, 1))
    for offset in range(messages):
        sequences.add(Entry(0, None, offset, size))
    return sequences


def room(own: CommitOrder, *others: CommitOrder, read_ahead: int = 0) -> int:
    limit = BacklogLimit(DELIVERY)
    with ExitStack() as working:
        for sequences in (own, *others):
            working.enter_context(limit.counting(sequences))
        return limit.room(own, read_ahead)


@pytest.mark.parametrize(
    ("messages", "read_ahead", "size", "expected"),
    [
        (0, 0, 1, 100),
        (99, 0, 1, 1),
        (100, 0, 1, 0),
        (60, 39, 1, 1),
        (60, 50, 1, 0),
        (9, 0, MIB, 91),
        (10, 0, MIB, 0),
    ],
)
def test_lane_alone_may_hold_its_own_bound(messages: int, read_ahead: int, size: int, expected: int) -> None:
    assert room(holding(messages, size=size), read_ahead=read_ahead) == expected


def test_a_lane_may_exceed_its_share_beside_idle_ones() -> None:
    idle = [holding(0) for _ in range(63)]
    assert room(holding(90), *idle) == 10


def test_when_a_worker_is_full_small_lanes_read_on() -> None:
    busy = [holding(60) for _ in range(5)]
    assert room(holding(60), *busy) == 0
    assert room(holding(49), *busy) == 1


def test_bytes_of_all_together_are_bounded_too() -> None:
    busy = [holding(6, size=MIB) for _ in range(5)]
    assert room(holding(6, size=MIB), *busy) == 0
    assert room(holding(4, size=MIB), *busy) > 0


def test_what_a_message_decides_counts_with_its_objects() -> None:
    lane = holding(1)
    (entry,) = lane._queues[0]
    change = Change("rows", b"key", b"value")
    change.local = b"\0\0key"
    entry.changes.append(change)
    entry.sends.append((TP("sent", 0), Outgoing(b"key", b"value", [("name", b"value")])))
    lane.finished(entry)
    data = 1 + len(b"\0\0key" + b"value") + len(b"key" + b"value" + b"name" + b"value")
    assert lane.uncommitted_bytes == ENTRY_BYTES + CHANGE_BYTES + SEND_BYTES + data


def test_what_is_in_a_commit_counts_until_it_is_committed() -> None:
    lane = holding(100)
    for entry in lane._queues[0]:
        entry.done = True
    lane.take(limit=80)
    assert room(lane) == 0
    lane.committed()
    assert room(lane) == 80


def test_a_lane_that_has_ended_no_longer_counts() -> None:
    limit, own = BacklogLimit(DELIVERY), holding(60)
    with limit.counting(own):
        with ExitStack() as working:
            for _ in range(5):
                working.enter_context(limit.counting(holding(60)))
            assert limit.room(own, 0) == 0
        assert limit.room(own, 0) == 40


@given(st.lists(st.integers(0, 120), min_size=1, max_size=80))
def test_lanes_hold_the_bound_and_their_shares_at_most(wanted: list[int]) -> None:
    """The bound by those that came first, a share by each of the others."""
    limit, lanes = BacklogLimit(DELIVERY), [holding(0) for _ in wanted]
    with ExitStack() as working:
        for lane in lanes:
            working.enter_context(limit.counting(lane))
        for lane, most in zip(lanes, wanted, strict=True):
            for offset in range(min(most, limit.room(lane, 0))):
                lane.add(Entry(0, None, offset))
    assert all(lane.uncommitted <= DELIVERY.max_backlog for lane in lanes)
    assert sum(lane.uncommitted for lane in lanes) <= 2 * DELIVERY.max_worker_backlog


def test_a_lane_that_holds_nothing_may_always_take_something() -> None:
    limit, lanes = BacklogLimit(LaneOptions(max_worker_backlog=63)), [holding(1) for _ in range(63)]
    with ExitStack() as working:
        for sequences in (empty := holding(0), *lanes):
            working.enter_context(limit.counting(sequences))
        assert limit.room(empty, 0) == 1


def test_what_is_read_ahead_counts_for_the_worker() -> None:
    others = [holding(90) for _ in range(3)]
    assert room(holding(10), *others) == 65, "its share of 75 is not full, and nothing is left beyond"
    others = [holding(30) for _ in range(3)]
    assert (room(holding(80), *others), room(holding(80), *others, read_ahead=15)) == (20, 5)
    others = [holding(70) for _ in range(3)]
    assert (room(holding(80), *others), room(holding(80), *others, read_ahead=8)) == (10, 2)
