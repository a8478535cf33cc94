"""Only keys wait: what has finished is committed beyond a slow neighbour, and never twice."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.engine.staging.commit_order import MOST_RANGES, CommitOrder
from streams.engine.staging.entry import Entry
from streams.engine.staging.keys import POSITION
from streams.engine.staging.position import Ahead, decode_position, encode_position
from streams.model.layout import LANE, Layout
from streams.ports import TP, Batch
from streams.testing.log import FakeRecord

LAYOUT = Layout("shop", 1, 1)
ORDERS, PAID = TP("orders", 0), TP("paid", 0)
RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=12)


@given(RANGES, st.integers(0, 30))
def test_ranges_are_a_set_of_offsets(ranges, reached):
    ahead, offsets = Ahead(), set[int]()
    for begin, length in ranges:
        ahead.add(begin, begin + length)
        offsets |= set(range(begin, begin + length))
    assert {offset for offset in range(50) if offset in ahead} == offsets
    bounds = [bound for pair in ahead.ranges for bound in pair]
    assert bounds == sorted(set(bounds)), "they are in order, and none meets another"
    passed = ahead.reached(reached)
    assert passed == next(offset for offset in range(reached, 60) if offset not in offsets)
    assert {offset for offset in range(50) if offset in ahead} == {o for o in offsets if o > passed}


@given(st.integers(0, 1 << 62), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=4))
def test_a_position_is_kept_with_what_is_handled_above_it(offset, ahead):
    assert decode_position(encode_position(offset, ahead)) == (offset, tuple(ahead))


def test_a_position_with_nothing_above_it_is_a_number():
    assert encode_position(12) == b"12"
    assert decode_position(b"12") == (12, ())
    with pytest.raises(ValueError, match="invalid literal"):
        int(encode_position(12, [(14, 15)]))  # so a version that knows no ranges does not open the lane


class Lane:
    """A lane's sequences on topics of one partition number; what is committed outlives a crash."""

    def __init__(self, logs: dict[TP, dict[int, bytes]], max_ahead: int = 1000) -> None:
        self.logs = logs
        self.ends = {tp: max(log, default=-1) + 2 for tp, log in logs.items()}  # a marker ends each
        self.committed: list[tuple[TP, int, bytes]] = []
        self.kept: dict[TP, bytes] = {}
        self._max_ahead = max_ahead
        self.open()

    def open(self) -> None:
        self.sequences = CommitOrder(LAYOUT, max_ahead=self._max_ahead)
        stands = {tp: decode_position(self.kept.get(tp, b"0")) for tp in self.logs}
        self.sequences.begin({}, {}, {tp: each.ahead for tp, each in stands.items()})
        self.at = {tp: each.offset for tp, each in stands.items()}
        self.entries: list[Entry] = []
        self.taken: list[Entry] = []

    def read(self, tp: TP, most: int = 1000) -> None:
        """Read records, and the markers between and behind them."""
        offsets = [offset for offset in sorted(self.logs[tp]) if offset >= self.at[tp]][:most]
        last = offsets[-1] + 1 if offsets else self.ends[tp]
        records = [FakeRecord(tp.topic, 0, offset, 0, self.logs[tp][offset], b"", []) for offset in offsets]
        batch = self.sequences.skip_committed(Batch(tp, records, last))
        self.at[tp] = last
        if not batch.records:
            self.sequences.advance_position(tp, batch.next_offset)
        for number, record in enumerate(batch.records):
            is_last = number + 1 == len(batch.records)
            following = batch.next_offset if is_last else batch.records[number + 1].offset
            entry = Entry(0, tp, following, 1, record.key, record.offset)
            self.sequences.add(entry)
            self.entries.append(entry)

    def finish(self, choice: int) -> None:
        first = {entry.key: entry for entry in reversed(self.entries) if not entry.done}
        if first:
            self.sequences.finished(list(reversed(first.values()))[choice % len(first)])

    def commit(self, limit: int = 1000) -> int:
        staged = self.sequences.take(limit)
        gone = [entry for entry in self.entries if entry.in_commit]
        self.entries = [entry for entry in self.entries if not entry.in_commit]
        self.committed += [(entry.tp, entry.offset, entry.key) for entry in gone if entry.tp is not None]
        for change in staged.changes.get(LANE, {}).values():
            self.kept[TP(change.key[len(POSITION) :].decode(), 0)] = change.value
        positions = {tp: decode_position(self.kept[tp]).offset for tp in staged.offsets}
        assert positions == staged.offsets, "the group's position is the changelog's"
        self.sequences.committed()
        assert len(gone) == staged.messages
        return staged.messages

    def offsets(self, tp: TP) -> list[int]:
        return [offset for topic, offset, _ in self.committed if topic == tp]


STEP = st.one_of(
    st.tuples(st.just("read"), st.sampled_from([ORDERS, PAID]), st.integers(1, 4)),
    st.tuples(st.just("finish"), st.integers(0, 9)),
    st.tuples(st.just("commit"), st.sampled_from([1, 2, 1000])),
    st.tuples(st.just("crash")),
    st.tuples(st.just("crash, and a commit with the first record"), st.sampled_from([ORDERS, PAID])),
)
LOG = st.dictionaries(st.integers(0, 14), st.sampled_from([b"a", b"b", b"c"]), max_size=9)


@pytest.mark.promise("slow-key", "any order of reading, finishing, committing and crashing")
@settings(max_examples=300)
@given(LOG, LOG, st.sampled_from([0, 3, 1000]), st.lists(STEP, max_size=40))
def test_each_message_is_committed_once_and_each_key_in_order(orders, paid, max_ahead, steps):
    lane = Lane({ORDERS: orders, PAID: paid}, max_ahead)
    for step in steps:
        match step:
            case "read", tp, most:
                lane.read(tp, most)
            case "finish", choice:
                lane.finish(choice)
            case "commit", limit:
                could, messages = lane.sequences.has_finished(), lane.commit(limit)
                assert could == bool(messages)
            case ("crash",):
                lane.open()
            case _, tp:
                lane.open()
                lane.read(tp, 1)
                lane.finish(0)
                lane.commit()
        for tp, data in lane.kept.items():
            stands, log = decode_position(data), lane.logs[tp]
            below = {offset for offset in log if offset < stands.offset}
            above = {o for o in log if any(begin <= o < end for begin, end in stands.ahead)}
            assert below | above == set(lane.offsets(tp)), "what is kept says what is committed"
            assert max_ahead or not above
    for tp in lane.logs:
        while lane.at[tp] < lane.ends[tp]:
            lane.read(tp)
    while any(not entry.done for entry in lane.entries):
        lane.finish(0)
    lane.commit()
    for tp, log in lane.logs.items():
        assert sorted(lane.offsets(tp)) == sorted(log), "each once"
        if tp in lane.kept:
            assert decode_position(lane.kept[tp]) == (lane.ends[tp], ())
        in_order = defaultdict(list)
        for _, offset, key in [each for each in lane.committed if each[0] == tp]:
            in_order[key].append(offset)
        assert all(offsets == sorted(offsets) for offsets in in_order.values())


def slow_first(number: int, **options: int) -> Lane:
    """A lane that has read messages of other keys behind one that takes its time, all of which are done."""
    lane = Lane({ORDERS: {offset: b"%d" % offset for offset in range(number + 1)}}, **options)
    lane.read(ORDERS)
    for _ in range(number):
        lane.finish(1)
    return lane


def test_what_holds_up_a_position_holds_up_no_other_key():
    lane = slow_first(3)
    assert lane.commit() == 3
    assert lane.kept == {ORDERS: b"0 1-4"}
    lane.finish(0)
    assert lane.commit() == 1
    assert lane.kept == {ORDERS: b"4"}


def test_what_was_handled_ahead_is_passed_over_behind_its_position():
    """After a crash it is read again, and the position moves over it before the lane takes it."""
    lane = slow_first(3)
    lane.commit()
    lane.open()
    lane.read(ORDERS, 1)
    lane.finish(0)
    lane.commit()
    assert lane.kept == {ORDERS: b"4"}
    lane.read(ORDERS, 1)
    lane.read(ORDERS, 2)
    assert (lane.entries, lane.commit()) == ([], 0)
    assert lane.kept == {ORDERS: b"4"}, "the position does not go back"
    lane.read(ORDERS)
    lane.commit()
    assert lane.kept == {ORDERS: b"5"}


def test_nothing_is_committed_further_ahead_than_allowed():
    assert slow_first(9, max_ahead=4).commit() == 3
    assert slow_first(9, max_ahead=0).commit() == 0


def test_the_ranges_that_are_kept_are_bounded():
    log = {offset: b"slow" if offset % 2 else b"%d" % offset for offset in range(4 * MOST_RANGES)}
    lane = Lane({ORDERS: log}, max_ahead=10_000)
    lane.read(ORDERS)
    for entry in lane.entries:
        if entry.key != b"slow":
            lane.sequences.finished(entry)
    lane.commit()
    assert len(decode_position(lane.kept[ORDERS]).ahead) == MOST_RANGES


def test_what_has_no_key_waits_for_all_before():
    lane = slow_first(1)
    lane.sequences.add(everything := Entry(0, None, 0))
    lane.sequences.finished(everything)
    late = Entry(0, PAID, 1, 1, b"late", 0)
    lane.sequences.add(late)
    lane.sequences.finished(late)
    lane.commit()
    assert (everything.in_commit, late.in_commit) == (False, False)
    lane.finish(0)
    lane.sequences.take(1000)
    assert (everything.in_commit, late.in_commit) == (True, True)


def test_a_position_passes_what_lay_between_two_messages() -> None:
    """Of the second one only its begin is known: the marker before it came with another fetch."""
    sequences = CommitOrder(Layout("app", 1, 1), max_ahead=100)
    slow, quick = Entry(0, ORDERS, 1, 1, b"slow", 0), Entry(0, ORDERS, 4, 1, b"quick", 2)
    sequences.add(slow)
    sequences.add(quick)
    sequences.finished(quick)
    assert sequences.take(10).offsets == {ORDERS: 0}
    sequences.finished(slow)
    assert sequences.take(10).offsets == {ORDERS: 4}
