"""Pages of rows: each row once, in bounded steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_workers import FakeWorker, make_application

from streams.control.base import paging
from streams.control.base.view import Problem
from streams.control.tables.lookup import browse
from streams.testing.store import MemoryStores

KEYS = st.sets(st.text(min_size=1, max_size=5), max_size=40)
SUBKEYS = st.sets(st.text(max_size=3), min_size=1, max_size=3)


def with_keys(keys, **options):
    worker = FakeWorker.with_lanes(0, 1, 2, 3, **options)
    for key in keys:
        worker.put(key)
    return worker


def all_pages(worker, **query):
    rows, cursor, pages = [], "", 0
    while True:
        page = browse(worker, "parcels", {**query, "cursor": cursor})
        rows += page.rows
        pages += 1
        if not page.next:
            return [(row.key, row.subkey) for row in rows], pages
        assert pages < 1000, "the pages do not end"
        cursor = page.next


@given(keys=KEYS, subkeys=SUBKEYS, limit=st.integers(1, 9))
def test_pages_have_every_row_of_the_worker_exactly_once(keys, subkeys, limit):
    worker = FakeWorker.with_lanes(0, 2, 3)
    expected = {(key, subkey) for key in worker.keys_here(keys) for subkey in subkeys}
    for key, subkey in expected:
        worker.put(key, subkey)
    found, pages = all_pages(worker, limit=str(limit))
    assert sorted(found) == sorted(expected)
    assert pages == max(1, -(-len(expected) // limit))


@given(keys=KEYS, prefix=st.text(min_size=1, max_size=2), limit=st.integers(1, 9))
def test_a_prefix_finds_the_keys_that_begin_with_it(keys, prefix, limit):
    keys |= {prefix + key for key in keys}
    found, _ = all_pages(with_keys(keys), prefix=prefix, limit=str(limit))
    assert sorted(key for key, _ in found) == sorted(key for key in keys if key.startswith(prefix))


@given(keys=KEYS)
def test_lanes_and_partitions_cut_a_table_into_parts(keys):
    worker = with_keys(keys)
    by_lane = [row for lane in range(4) for row in all_pages(worker, lane=str(lane))[0]]
    by_partition = [row for number in range(8) for row in all_pages(worker, partition=str(number))[0]]
    assert sorted(by_lane) == sorted(by_partition) == sorted((key, "") for key in keys)


def test_a_row_that_goes_takes_no_other_with_it():
    keys = [f"k{n}" for n in range(30)]
    worker = with_keys(keys, app=make_application(partitions=4))
    first = browse(worker, "parcels", {"limit": "10"})
    gone = first.rows[3].key
    lane = worker.lanes[worker.lane(gone)]
    (local,) = [key for key, _ in lane.store.scan("parcels") if key.endswith(gone.encode())]
    lane.store.apply([("parcels", local, None)], {})
    rest = browse(worker, "parcels", {"limit": "100", "cursor": first.next})
    assert sorted(row.key for row in [*first.rows, *rest.rows]) == sorted(keys)


def test_a_page_of_large_rows_ends_early_with_one():
    worker = with_keys([])
    for n in range(5):
        worker.put(f"k{n}", note="x" * (paging.MOST_BYTES + 1))
    found, pages = all_pages(worker, limit="5")
    assert (len(found), pages) == (5, 5)


def test_a_page_looks_into_so_many_empty_partitions():
    worker = FakeWorker.with_lanes(0, app=make_application(partitions=1000, lanes=1))
    worker.put("only")
    first = browse(worker, "parcels", {})
    found, pages = all_pages(worker)
    assert first.next
    assert (found, pages) == ([("only", "")], 1000 // paging.MOST_RANGES)


@given(place=st.binary(max_size=40))
def test_a_cursor_is_read_as_it_was_written(place):
    assert paging.decode_cursor(paging.encode_cursor(place)) == place


@pytest.mark.parametrize(
    ("decode", "error", "text"),
    [
        *((paging.decode_cursor, "bad_cursor", it) for it in ("!", "a", "AA==", "AAB", "AA AA", "ä", "AA\n")),
        *((paging.decode_limit, "bad_limit", it) for it in ("0", "-1", "501", "ten", "1.5", "\u0661")),
        (paging.decode_limit, "bad_limit", "9" * 5000),
    ],
)
def test_what_is_no_cursor_and_no_limit_is_refused(decode, error, text):
    with pytest.raises(Problem) as raised:
        decode(text)
    assert (raised.value.status, raised.value.error) == (400, error)


@pytest.mark.parametrize("prefix", [b"", b"\xff", b"\xff\xff"])
def test_nothing_comes_after_the_last_prefix(prefix):
    assert paging.after(prefix) is None


@given(prefix=st.binary(min_size=1, max_size=4), rest=st.binary(max_size=3), other=st.binary(max_size=6))
def test_after_a_prefix_is_the_least_other_key(prefix, rest, other):
    end = paging.after(prefix)
    if end is not None:
        assert prefix + rest < end
        assert other.startswith(prefix) == (prefix <= other < end)


def test_the_last_partition_number_there_is_ends_with_the_table():
    assert paging.partition_range(MemoryStores().open(0), 0xFFFF).stop is None
