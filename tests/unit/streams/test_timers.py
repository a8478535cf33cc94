"""Timers come up when due; what was moved, cancelled or fired meanwhile is recognised."""

from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams.engine.staging.changes import TIMERS_BY_DUE, Change, Writes
from streams.engine.staging.keys import store_key
from streams.engine.staging.timers import Due, DueIndex, remove_timer, set_timer, timer_key, timer_name
from streams.model.layout import LANE
from streams.ports import Outgoing
from streams.testing.store import MemoryStore, MemoryStores

WRITES = Writes(100.0)


def store() -> MemoryStore:
    return MemoryStores().open(0)


def put(rows: MemoryStore, change: Change, partition: int = 0) -> None:
    rows.apply(WRITES.of(LANE, partition, [(change.key, change.value)]), {})


def message(text: bytes) -> Outgoing:
    return Outgoing(b"k", text, [("ce_id", b"1")])


def all_due(rows: MemoryStore, now: float) -> list[tuple[Due | None, bytes]]:
    return list(DueIndex().due(rows, now, none_staged))


def none_staged(_local: bytes) -> bool:
    return False


def drained(rows: MemoryStore, now: float) -> list[bytes | None]:
    """What is due; stale index entries are dropped as a lane does."""
    found = all_due(rows, now)
    rows.apply([(TIMERS_BY_DUE, index, None) for due, index in found if due is None], {})
    return [due.outgoing.value for due, _ in found if due is not None]


def test_timers_come_up_in_order_when_due_and_not_before() -> None:
    rows = store()
    for name, due in (("late", 3.0), ("early", 1.0), ("exact", 2.0)):
        put(rows, set_timer(timer_name(b"h", b"k", name), due, "topic", message(name.encode())))
    assert drained(rows, 0.999) == []
    assert drained(rows, 2.0) == [b"early", b"exact"]
    assert drained(rows, 9.0) == [b"early", b"exact", b"late"]


@pytest.mark.promise("timers")
@given(due=st.floats(1.0, 4e9), early=st.floats(1e-5, 0.002))
@example(due=1.0006, early=0.0003)
def test_no_timer_is_early_or_a_millisecond_late(due: float, early: float) -> None:
    rows = store()
    put(rows, set_timer(timer_name(b"h", b"k", "alarm"), due, "topic", message(b"now")))
    assert drained(rows, due - early) == []
    assert drained(rows, due + 0.0011) == [b"now"]


def test_moved_cancelled_and_fired_timers_leave_stale_entries() -> None:
    rows = store()
    moved, cancelled = timer_name(b"h", b"k", "moved"), timer_name(b"h", b"k", "cancelled")
    put(rows, set_timer(moved, 1.0, "topic", message(b"old")))
    put(rows, set_timer(moved, 5.0, "topic", message(b"new")))
    put(rows, set_timer(cancelled, 1.0, "topic", message(b"never")))
    put(rows, remove_timer(cancelled))
    assert drained(rows, 2.0) == []
    assert len(list(rows.scan(TIMERS_BY_DUE))) == 1
    assert drained(rows, 5.0) == [b"new"]
    put(rows, set_timer(moved, 2.0, "topic", message(b"earlier again")))
    assert drained(rows, 3.0) == [b"earlier again"]


def test_a_due_timer_has_all_to_send_it() -> None:
    rows = store()
    name = timer_name(b"svc.h", b"k", "alarm")
    put(rows, set_timer(name, 1.5, "topic", message(b"body")), partition=7)
    ((due, _),) = all_due(rows, 2.0)
    assert (due.partition, due.name, due.due_ms, due.topic) == (7, name, 1500, "topic")
    assert (due.outgoing.key, due.outgoing.value) == (b"k", b"body")
    assert [tuple(header) for header in due.outgoing.headers] == [("ce_id", b"1")]


A, B = (timer_name(b"h", b"k", name) for name in "ab")
NAMES = st.sampled_from([A, B])
TIMES = st.integers(0, 6).map(float)
SET = st.builds(lambda name, due: set_timer(name, due, "topic", message(b"body")), NAMES, TIMES)
REMOVED = NAMES.map(remove_timer)
#: Until when is looked, how much of it is taken, for a lane has enough when its backlog is full, and of which
#: timers a change is staged.
LOOK = st.tuples(TIMES, st.integers(0, 3), st.sets(NAMES))


#: A lane that has had enough after an entry that is stale, with one behind it that is not.
BROKEN_OFF = [
    set_timer(A, 1.0, "topic", message(b"body")),
    remove_timer(A),
    set_timer(B, 2.0, "topic", message(b"body")),
    (3.0, 1, set()),
    (3.0, 0, set()),
]


@pytest.mark.promise("timers")
@given(st.lists(SET | REMOVED | LOOK, max_size=30))
@example(BROKEN_OFF)
def test_a_look_that_goes_on_finds_what_a_whole_finds(
    happens: list[Change | tuple[float, int, set[bytes]]],
) -> None:
    rows, index = store(), DueIndex()
    for each in happens:
        if isinstance(each, Change):
            put(rows, each)
            index.written([each])
            continue
        now, most, staged = each
        there = [found for found in all_due(rows, now) if found[0] and found[0].name not in staged]
        local = {store_key(0, name) for name in staged}
        with closing(index.due(rows, now, local.__contains__)) as looked:
            found = list(islice(looked, most) if most else looked)
        rows.apply([(TIMERS_BY_DUE, key, None) for due, key in found if due is None], {})
        due = [one for one in found if one[0] is not None]
        assert due == there[: len(due)]
        assert len(due) == len(there) or 0 < most == len(found)


def test_a_look_begins_behind_what_was_dropped() -> None:
    rows, index, begins = store(), DueIndex(), []
    scan = rows.scan

    def watched(
        table: str, *, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        begins.append(start)
        return scan(table, start=start, stop=stop)

    rows.scan = watched  # type: ignore[method-assign]
    gone = timer_name(b"h", b"k", "gone")
    put(rows, set_timer(gone, 1.0, "topic", message(b"")))
    put(rows, remove_timer(gone))
    rows.apply([(TIMERS_BY_DUE, key, None) for _, key in index.due(rows, 2.0, none_staged)], {})
    assert list(index.due(rows, 2.0, none_staged)) == []
    assert begins == [b"", (2001).to_bytes(8, "big")]


TEXT = st.text(st.sampled_from("a\0b"), max_size=5)


@given(TEXT, TEXT, TEXT, TEXT)
def test_timers_of_other_keys_and_names_never_meet(key: str, name: str, other: str, other_name: str) -> None:
    one, two = timer_name(b"h", key.encode(), name), timer_name(b"h", other.encode(), other_name)
    assert (one == two) is ((key, name) == (other, other_name))
    assert timer_key(one) == key.encode()
