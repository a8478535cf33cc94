"""Rows, timers and inbox entries as changelog records, and what the store makes of them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from letters_kept import staging_over

from streams.engine.staging.changelog import writes_of
from streams.engine.staging.changes import IDS_BYTES, POSITIONS, TIMERS_BY_DUE, Change, Pair, Writes, pack_ids
from streams.engine.staging.commit_order import CommitOrder
from streams.engine.staging.entry import ENTRY_BYTES, Entry
from streams.engine.staging.inbox import DAY, Inbox, bucket_length, check_retention, inbox_entry
from streams.engine.staging.keys import HANDLER, POSITION, TIMER, split_store_key, store_key
from streams.errors import SettingsError
from streams.model.layout import INBOX, LANE, Layout
from streams.model.row_keys import MAX_KEY_BYTES, row_key, split_row_key
from streams.ports import TP, Outgoing
from streams.testing.store import MemoryStore, MemoryStores

NAMES = st.binary(max_size=6)
WRITES = Writes(100.0)


def store() -> MemoryStore:
    return MemoryStores().open(0)


# -- rows ---------------------------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.binary(max_size=50))
def test_a_row_key_gives_back_what_it_was_made_of(key: bytes, subkey: bytes) -> None:
    assert split_row_key(row_key(key, subkey)) == (key, subkey)


@given(NAMES, NAMES, NAMES, NAMES)
def test_pairs_share_no_row_and_sub_rows_lie_together(
    key: bytes, subkey: bytes, other: bytes, other_subkey: bytes
) -> None:
    same = (key, subkey) == (other, other_subkey)
    assert (row_key(key, subkey) == row_key(other, other_subkey)) is same
    assert row_key(other, other_subkey).startswith(row_key(key)) is (key == other)


def test_the_longest_key_has_a_row() -> None:
    longest = b"k" * MAX_KEY_BYTES
    assert split_row_key(row_key(longest, b"s")) == (longest, b"s")
    with pytest.raises(OverflowError):
        row_key(longest + b"k")


@given(st.integers(0, 65535), st.binary(max_size=20))
def test_a_store_key_gives_back_partition_and_key(partition: int, key: bytes) -> None:
    assert split_store_key(store_key(partition, key)) == (partition, key)


# -- live and replayed --------------------------------------------------------------------------------------


def _in_lane(kind: bytes, values: st.SearchStrategy[bytes | None]) -> st.SearchStrategy[Change]:
    return st.builds(Change, st.just(LANE), NAMES.map(kind.__add__), values, st.none())


TIMES = st.integers(0, 2_000).map(lambda ms: ms.to_bytes(8, "big"))
CHANGES = st.one_of(
    st.builds(Change, st.just("rows"), NAMES, st.none() | NAMES, st.none()),
    _in_lane(TIMER, st.none() | TIMES.map(lambda t: t + b"m")),
    _in_lane(POSITION, st.integers(0, 9).map(b"%d".__mod__)),
    _in_lane(HANDLER, st.none() | NAMES),
)
IDS = st.lists(st.tuples(NAMES, st.builds(lambda t, v: t + v, TIMES, NAMES)), max_size=2)
Decided = tuple[int, list[Change], list[Pair]]
STEPS = st.tuples(st.integers(0, 2), st.lists(CHANGES, max_size=4), IDS)


def staged_of(sequences: CommitOrder, steps: list[Decided]) -> list[Entry]:
    entries = []
    for offset, (partition, changes, ids) in enumerate(steps):
        entry = Entry(partition, TP("source", partition), offset + 1)
        for change in changes:
            change.local = store_key(partition, change.key)
        entry.changes, entry.ids = changes, ids
        entry.done = True
        sequences.add(entry)
        entries.append(entry)
    return entries


@given(st.lists(STEPS, max_size=12), st.integers(1, 12))
def test_store_written_live_equals_one_rebuilt_from_the_changelogs(steps: list[Decided], limit: int) -> None:
    sequences = CommitOrder(Layout("app", 3, 1))
    staged_of(sequences, steps)
    live, rebuilt = store(), store()
    logs: dict[TP, list[Outgoing]] = {}
    while sequences.has_finished():
        staged = sequences.take(limit)
        assert 0 < staged.messages <= limit
        live.apply(writes_of(staged, WRITES), {})
        for tp, records in staged.records.items():
            logs.setdefault(tp, []).extend(records)
    assert sequences.backlog == 0
    for tp, records in logs.items():
        table = tp.topic.removeprefix("app-").removesuffix("-changelog")
        pairs = [(record.key or b"", record.value) for record in records]
        rebuilt.apply(WRITES.of(table, tp.partition, pairs), {})
    assert _content(live) == _content(rebuilt)
    positions = {partition: offset + 1 for offset, (partition, _, _) in enumerate(steps)}
    for partition, position in positions.items():
        assert live.get(POSITIONS, store_key(partition, b"source")) == b"%d" % position


def _content(of: MemoryStore) -> dict[str, dict[bytes, bytes]]:
    tables = {table: dict(of.scan(table)) for table in of.tables()}
    return {table: rows for table, rows in tables.items() if rows and table != TIMERS_BY_DUE}


@pytest.mark.parametrize("staged", [False, True], ids=["before it is staged", "when it is staged already"])
def test_what_markers_move_a_position_over_is_recorded(staged: bool) -> None:
    """With the message before them, or with the next transaction when that message is in one."""
    sequences, tp = CommitOrder(Layout("app", 1, 1)), TP("orders", 0)
    entry = Entry(0, tp, 4)
    sequences.add(entry)
    sequences.finished(entry)
    if staged:
        assert sequences.take(10).offsets == {tp: 4}
    sequences.advance_position(tp, 6)
    assert sequences.has_advanced is staged
    assert sequences.take(10).offsets == {tp: 6}


def test_partitions_take_turns_when_transactions_are_small() -> None:
    sequences = CommitOrder(Layout("app", 2, 1))
    staged_of(sequences, [(0, [], []), (0, [], []), (0, [], []), (0, [], []), (1, [], []), (1, [], [])])
    turns = [next(iter(sequences.take(1).offsets)).partition for _ in range(4)]
    assert set(turns) == {0, 1}


def test_a_newer_change_stays_staged_after_the_older_one() -> None:
    staging = staging_over(MemoryStores().open(0))
    older, newer, other = Change("t", b"k", b"1"), Change("t", b"k", b"2"), Change("t", b"o", b"3")
    first, second = staged_of(staging.order, [(0, [older, other], []), (0, [newer], [])])
    for entry in (first, second):
        for change in entry.changes:
            staging.show(change.local, change)
    staging.forget(staging.order.take(1))
    assert staging.get("t", store_key(0, b"k")) is newer
    assert staging.get("t", store_key(0, b"o")) is None
    staging.forget(staging.order.take(1))
    assert len(staging) == 0


# -- inbox --------------------------------------------------------------------------------------------------


def remember(of: MemoryStore, key: bytes, at: float) -> None:
    entry = inbox_entry(key, int(at * 1000), b"note")
    records = [(b"", value) for value in pack_ids([entry])]
    of.apply(WRITES.of(INBOX, 1, records), {})


@pytest.mark.promise("duplicates")
@given(st.floats(0, 10_000), st.floats(0, 1_000))
def test_an_id_is_remembered_for_its_retention(at: float, later: float) -> None:
    retention = 200.0
    rows = store()
    inbox = Inbox(rows, Writes(bucket_length(retention)), retention)
    remember(rows, b"id", at)
    now = at + later
    seen = inbox.seen([store_key(1, b"id")], now)
    if later <= retention - 0.001:
        assert seen == [True]
    if later > retention * 1.5 + 0.001:
        assert seen == [False]
        assert len(inbox.expire(now)) == 1
        assert rows.tables() == []
    else:
        inbox.expire(now)
        assert inbox.seen([store_key(1, b"id")], now) == seen


def test_an_id_is_known_by_handler_source_and_partition() -> None:
    rows = store()
    inbox = Inbox(rows, WRITES, 200.0)
    key = inbox.key(b"svc.handler", b"source", b"id-1")
    assert key.endswith(b"id-1")
    others = {inbox.key(b"svc.other", b"source", b"id-1"), inbox.key(b"svc.handler", b"", b"id-1")}
    assert len({key, *others}) == 3
    remember(rows, key, 50.0)
    assert inbox.seen([store_key(1, key), store_key(2, key)], 60.0) == [True, False]


def test_inventing_sources_does_not_fill_the_memory() -> None:
    inbox = Inbox(store(), WRITES, 200.0)
    first = inbox.key(b"h", b"source", b"1")
    for n in range(10_050):
        inbox.key(b"h", b"%d" % n, b"1")
    assert len(inbox._prefixes) < 10_010
    assert inbox.key(b"h", b"source", b"1") == first


def test_an_inbox_shorter_than_dead_letters_is_refused() -> None:
    check_retention(inbox=15 * DAY, dead_letters=14 * DAY, longest_retry=DAY)
    with pytest.raises(SettingsError, match="inbox retention of 15 days is shorter than dead letters"):
        check_retention(inbox=15 * DAY, dead_letters=14 * DAY, longest_retry=DAY + 1)


def test_a_transaction_has_a_bound_in_bytes() -> None:
    sequences = CommitOrder(Layout("app", partitions=2, lanes=1))
    for offset in range(6):
        entry = Entry(offset % 2, TP("t", offset % 2), offset // 2 + 1, size=100)
        entry.done = True
        sequences.add(entry)
    whole = 100 + ENTRY_BYTES
    assert sequences.backlog_bytes == 6 * whole
    assert sequences.take(limit=10, max_bytes=5 * whole // 2).messages == 3
    assert sequences.backlog_bytes == 3 * whole
    assert sequences.take(limit=10, max_bytes=1).messages == 1


@given(st.lists(st.tuples(NAMES, st.binary(min_size=8, max_size=300_000)), max_size=8))
def test_packed_ids_are_all_there_in_bounded_records(entries: list[tuple[bytes, bytes]]) -> None:
    records = list(pack_ids(entries))
    assert [pair for record in records for pair in _ids_of(record)] == entries
    largest = max((len(key) + len(value) for key, value in entries), default=0)
    assert all(len(record) <= IDS_BYTES + largest + 16 * len(entries) for record in records)


def _ids_of(record: bytes) -> list[tuple[bytes, bytes]]:
    return msgspec.msgpack.decode(record, type=list[tuple[bytes, bytes]])
