"""The index by status equals what the rows say, whatever has happened to them, and when it was asked."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.control.sagas import row_index
from streams.control.sagas.row_index import AT_ONCE, Index, Indexed, IndexedStatus, catch_up, counted, entries
from streams.engine.life.recovery import open_store
from streams.engine.staging.changes import BY_STATUS, CHANGED, STATUS_OF, Writes
from streams.ports import Store
from streams.testing.store import MemoryStores

TABLES = ("a", "b")
KEYS = [bytes([n]) for n in range(4)]
ROW = st.sampled_from([None, b"new 1", b"new 2", b"old 1", b"none 1"])
#: A row changes, the index catches up with a few, or with all; the lane closes and opens again.
STEP = st.one_of(
    st.tuples(st.sampled_from(TABLES), st.sampled_from(KEYS), ROW),
    st.sampled_from(["some", "all", "reopened", "unfollowed"]),
)


def entry_of(table: str, store: Store, local: bytes, data: bytes) -> IndexedStatus | None:
    """`none` is in no list, and a row of b is none while a has one of the same key."""
    status, _, order = data.partition(b" ")
    if status == b"none" or (table == "b" and store.get("a", local) is not None):
        return None
    return IndexedStatus("rows", status.decode(), order, ("rows", table, status.decode()), data)


@pytest.fixture(scope="module", params=[3, 50_000], autouse=True)
def most_removed(request: pytest.FixtureRequest) -> Iterator[int]:
    """The table of marks is made anew now and then, or never."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_index, "MOST_REMOVED", request.param)
        yield request.param


INDEX: Index = {"a": Indexed(partial(entry_of, "a"), ("b",)), "b": Indexed(partial(entry_of, "b"))}
let_others = partial(asyncio.sleep, 0)


def caught_up(store: Store, index: Index = INDEX, most: float = float("inf")) -> bool:
    return asyncio.run(catch_up(store, index, let_others, most))


def listed(store: Store) -> list[tuple[str, str, bytes, bytes]]:
    found = [each for status in ("new", "old") for each in entries(store, "rows", status, width=1)]
    return [(each.table, each.status, each.local, each.value) for each in found]


def expected(store: Store) -> list[tuple[str, str, bytes, bytes]]:
    rows = [(table, local, data) for table in TABLES for local, data in store.scan(table)]
    made = [(entry_of(table, store, local, data), table, local) for table, local, data in rows]
    return [(table, entry.status, local, entry.value) for entry, table, local in made if entry is not None]


@given(st.lists(STEP, max_size=30))
def test_once_caught_up_it_says_what_the_rows_say(steps):
    stores, writes = MemoryStores(), Writes(60.0, TABLES)
    store = open_store(stores, 0, followed=True)
    for step in steps:
        if step == "some":
            caught_up(store, most=1)
        elif step == "all":
            assert caught_up(store)
        elif step in ("reopened", "unfollowed"):
            store.close()
            store = open_store(stores, 0, followed=step == "reopened")
        else:
            table, key, data = step
            store.apply(list(writes.local(table, [(b"\0\0" + key, data)])), {})
    assert caught_up(store)
    assert sorted(listed(store)) == sorted(expected(store))
    numbers = Counter((table, status) for table, status, *_ in expected(store))
    assert counted(store, "rows") == numbers
    assert list(store.scan(CHANGED)) == []


def changed(store: Store, number: int, table: str = "a") -> None:
    writes = Writes(60.0, TABLES)
    rows = [(b"\0\0%04d" % n, b"new 1") for n in range(number)]
    store.apply(list(writes.local(table, rows)), {})


def test_who_waits_is_told_that_many_changes_are_left():
    store = MemoryStores().open(0)
    assert not caught_up(store, most=1), "there is no index yet"
    assert caught_up(store)
    changed(store, 3 * AT_ONCE)
    assert not caught_up(store, most=AT_ONCE)
    assert not caught_up(store, most=AT_ONCE)
    assert caught_up(store, most=2 * AT_ONCE)
    assert counted(store, "rows") == {("a", "new"): 3 * AT_ONCE}


def test_marks_that_were_removed_are_not_passed_over_for_ever(most_removed):
    store = MemoryStores().open(0)
    assert caught_up(store)
    changed(store, 4)
    assert caught_up(store)
    assert (CHANGED in store.tables()) == (most_removed > 4)
    changed(store, 1, "b")
    assert caught_up(store)
    assert counted(store, "rows") == {("a", "new"): 4}, "a has a row with that key"


def test_a_table_that_is_new_is_indexed_whole():
    store = MemoryStores().open(0)
    one: Index = {"a": INDEX["a"]._replace(others=())}
    assert caught_up(store, one)
    changed(store, 2, "b")
    assert caught_up(store)
    assert counted(store, "rows") == {("b", "new"): 2}


def test_nothing_is_left_where_changes_are_not_marked():
    stores = MemoryStores()
    store = open_store(stores, 0, followed=True)
    changed(store, 2)
    assert caught_up(store)
    changed(store, 1)
    store.close()
    store = open_store(stores, 0, followed=False)
    assert [table for table in (CHANGED, STATUS_OF, BY_STATUS) if list(store.scan(table))] == []


@pytest.mark.parametrize("followed", [(), TABLES])
def test_a_change_is_marked_where_it_is_followed_alone(followed):
    writes = list(Writes(60.0, followed).local("a", [(b"\0\0k", b"new 1"), (b"\0\0l", None)]))
    assert [key for table, key, _ in writes if table == "a"] == [b"\0\0k", b"\0\0l"]
    marks = [key for table, key, _ in writes if table == CHANGED]
    assert marks == ([b"a\0\0\0k", b"a\0\0\0l"] if followed else [])
