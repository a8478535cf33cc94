"""Queues of waiting messages: what they hold, how they are written down, and when their heads are due."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.engine.staging.changes import MESSAGES, QUEUES, QUEUES_BY_DUE, Writes
from streams.engine.staging.keys import after_time, split_queue_entry, split_store_key, store_key, time_in
from streams.engine.waiting.queue import (
    Reason,
    WaitingMessage,
    WaitingQueue,
    begin,
    due_until,
    handler_of,
    index_prefix,
    message_of,
    queue_name,
    read_message,
    read_queue,
    set_message,
    set_queue,
)
from streams.model.layout import LANE
from streams.testing.log import FakeRecord
from streams.testing.store import MemoryStore, MemoryStores

WRITES = Writes(100.0)
HANDLERS = st.sampled_from([b"bench.count", b"bench.counts", b"b"])
KEYS = st.binary(max_size=4) | st.sampled_from([b"\0", b"a\0", b"a\0b"])
TIMES = st.integers(0, 2**53)


def queue(due_ms: int, reason: Reason = Reason.RETRY) -> WaitingQueue:
    return begin(reason, due_ms=due_ms, attempts=1, size=10)


def put(rows: MemoryStore, name: bytes, value: WaitingQueue | None, partition: int = 0) -> None:
    change = set_queue(name, value)
    rows.apply(WRITES.of(LANE, partition, [(change.key, change.value)]), {})


def _said_by(entry: bytes) -> tuple[int, bytes, int]:
    """Partition, name and due time of an entry of the index."""
    place, local_name = split_queue_entry(entry)
    return *split_store_key(local_name), time_in(after_time(place))


def due(rows: MemoryStore, handler: bytes, now: float) -> list[tuple[int, bytes, int]]:
    prefix = index_prefix(handler)
    entries = rows.scan(QUEUES_BY_DUE, start=prefix, stop=prefix + due_until(now))
    return [_said_by(entry) for entry, _ in entries]


@given(HANDLERS, KEYS, KEYS, HANDLERS, KEYS, KEYS)
def test_queues_of_different_handlers_keys_and_orders_never_meet(
    handler: bytes, key: bytes, order: bytes, other: bytes, other_key: bytes, other_order: bytes
) -> None:
    one, two = queue_name(handler, key, order), queue_name(other, other_key, other_order)
    assert (one == two) is ((handler, key, order) == (other, other_key, other_order))
    assert handler_of(one) == handler


@given(st.integers(0, 2**63), st.integers(0, 2**63))
def test_messages_of_a_queue_lie_in_order_of_number(one: int, other: int) -> None:
    keys = [set_message(b"name", number, None).key for number in (one, other)]
    assert (keys[0] < keys[1]) is (one < other)


@pytest.mark.parametrize(
    "headers", [[], [("ce_id", b"1"), ("empty", b""), ("none", None), ("twice", b"1"), ("twice", b"2")]]
)
def test_a_message_is_kept_as_it_came(headers: list[Any]) -> None:
    record = FakeRecord("topic", 3, 42, 1_700_000_000_123, b"key", b"value\xff", headers)
    kept = message_of(record, 1_700_000_000_456)
    change = set_message(b"name", 0, kept)
    assert read_message(change.value) == kept == change.row
    in_headers = sum(len(name) + len(value or b"") for name, value in headers)
    assert kept.size == len(b"key") + len(b"value\xff") + in_headers
    whole = (kept.topic, kept.partition, kept.offset, kept.timestamp, kept.key, kept.value)
    assert whole == ("topic", 3, 42, 1_700_000_000_123, b"key", b"value\xff")
    assert kept.headers == [(name, value or b"") for name, value in headers]


def test_a_message_that_goes_takes_its_row_away() -> None:
    rows = MemoryStores().open(0)
    message = WaitingMessage("topic", 0, 1, 2, b"k", b"v", [])
    for change in (set_message(b"n", 7, message), set_message(b"n", 8, message), set_message(b"n", 7, None)):
        rows.apply(WRITES.of(LANE, 5, [(change.key, change.value)]), {})
    assert [key for key, _ in rows.scan(MESSAGES)] == [store_key(5, b"n" + (8).to_bytes(8, "big"))]


# -- the due index ----------------------------------------------------------------------------------------


def test_queues_come_up_in_order_of_time() -> None:
    rows = MemoryStores().open(0)
    names = {due_ms: queue_name(b"h", b"%d" % due_ms) for due_ms in (3000, 1000, 2000)}
    for due_ms, name in names.items():
        put(rows, name, queue(due_ms), partition=7)
    assert due(rows, b"h", 0.999) == []
    assert due(rows, b"h", 2.0) == [(7, names[1000], 1000), (7, names[2000], 2000)]
    assert [at for *_, at in due(rows, b"h", 9.0)] == [1000, 2000, 3000]


def test_those_of_a_handler_come_up_for_it_alone() -> None:
    rows = MemoryStores().open(0)
    put(rows, queue_name(b"bench.count", b"k"), queue(1000))
    put(rows, queue_name(b"bench.counts", b"k"), queue(500))
    assert [at for *_, at in due(rows, b"bench.count", 2.0)] == [1000]
    assert [at for *_, at in due(rows, b"bench.counts", 2.0)] == [500]


def test_what_waits_for_something_else_than_time_never_comes_up() -> None:
    rows = MemoryStores().open(0)
    name = queue_name(b"h", b"k")
    put(rows, name, queue(0, Reason.DEAD))
    assert due(rows, b"h", 1e12) == []
    assert rows.get(QUEUES, store_key(0, name)) is not None


def test_a_queue_put_off_leaves_a_stale_entry() -> None:
    rows = MemoryStores().open(0)
    name = queue_name(b"h", b"k")
    put(rows, name, queue(1000))
    put(rows, name, queue(5000))
    assert [at for *_, at in due(rows, b"h", 9.0)] == [1000, 5000]
    assert read_queue(rows.get(QUEUES, store_key(0, name))).due_ms == 5000
    put(rows, name, None)
    assert rows.get(QUEUES, store_key(0, name)) is None


@given(st.floats(0, 1e10), TIMES)
def test_an_entry_is_due_from_its_time_on(now: float, due_ms: int) -> None:
    assert (due_ms.to_bytes(8, "big") < due_until(now)) is (due_ms <= now * 1000)
