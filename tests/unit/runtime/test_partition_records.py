"""What a reader makes of a fetched answer: what is sound as aiokafka does, and what is not in its place."""

import gc
import random
import tracemalloc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from hypothesis import given
from hypothesis import strategies as st

from streams.kafka.fetch_sources import Place
from streams.kafka.partition_records import FetchedRecords, IsolatingRecords, Isolation
from streams.kafka.records.batches import MAX_HEADERS, Plain, read_batch
from streams.ports import TP, Damaged
from streams.testing.batches import CODECS, batch, checked, record

pytestmark = pytest.mark.promise("unreadable-records", "against the client library's own reading")

HERE = TP("orders", 3)
LIMIT = 1 << 20
COMMITTED = fetcher.READ_COMMITTED
#: The keys of the markers that end transactions: version, then what became of it.
ABORTED, DONE = b"\0\0\0\0", b"\0\0\0\1"


def reading(
    data: bytes, start: int = 0, *, isolation: Any = None, aborted: Sequence[tuple[int, int]] = ()
) -> IsolatingRecords:
    with_checks = Isolation(LIMIT) if isolation is None else isolation
    tp = TopicPartition(*HERE)
    return IsolatingRecords(
        tp, FetchedRecords(data), list(aborted), start, None, None, with_checks, COMMITTED
    )


def values(data: bytes, start: int = 0, **options: Any) -> list[bytes]:
    return [each[3] for each in shown(reading(data, start, **options))]


def offsets(data: bytes, start: int = 0) -> list[int]:
    return [each[0] for each in shown(reading(data, start))]


def one(value: bytes = b"v", base: int = 0) -> bytes:
    return batch([record(0, b"k", value)], base=base)


def shown(records: Any) -> list[Any]:
    return [
        (each.offset, each.form, each.key, each.value)
        if isinstance(each, Damaged)
        else (each.offset, each.timestamp, each.key, each.value, list(each.headers))
        for each in records
    ]


def marker(key: bytes, *, base: int, producer: int) -> bytes:
    return batch([record(0, key, b"\0" * 6)], base=base, producer_id=producer, attributes=0x30)


def transactional(values: Sequence[bytes], *, base: int, producer: int) -> bytes:
    records = [record(i, b"k", value) for i, value in enumerate(values)]
    return batch(records, base=base, producer_id=producer, attributes=0x10)


def spoiled(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 0xFF])


def test_records_take_memory_only_when_they_are_asked_for() -> None:
    """A list of all records of each fetched batch was an eighth of what a worker of 64 lanes took."""
    raw = batch([record(i, b"key-%d" % i, bytes(60), [("id", b"%d" % i)]) for i in range(5000)])
    tracemalloc.start()
    try:
        records = reading(raw)
        first = [next(records) for _ in range(10)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 * len(raw) + 100_000
    assert [each.offset for each in (*first, *records)] == list(range(5000))


def test_what_is_read_to_its_end_is_gone_at_once() -> None:
    """It is large, and what holds itself waits for a collection."""
    place = Place(HERE, 0)
    gc.disable()
    try:
        place.fill(FetchedRecords(one() + one(base=1)), [], Isolation(LIMIT))
        records = weakref.ref(place._records)
        while not place.take(1)[1]:
            assert records() is not None
        assert (place.position, records()) == (2, None)
    finally:
        gc.enable()


contents = st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=9)), min_size=1, max_size=4)


@given(contents, st.sampled_from(sorted(CODECS)), st.integers(0, 8), st.randoms(use_true_random=False))
def test_whatever_comes_is_read_alike_from_any_place(
    contents: list[Any], codec: str, start: int, chance: random.Random
) -> None:
    """Offsets that lie, bytes that were changed, read from any place in the batch."""
    made = [record(delta, b"k", value, [("h", b"x")]) for delta, value in contents]
    raw = bytearray(batch(made, codec=codec))
    for _ in range(chance.randrange(4)):
        raw[chance.randrange(61, len(raw))] = chance.randrange(256)
    sent = checked(bytes(raw))
    records = reading(sent, start)
    careful = [each for each in read_batch(HERE, sent, LIMIT) if each.offset >= start]
    assert shown(records) == shown(careful)
    assert records.next_fetch_offset == len(contents)


def test_a_record_whose_offset_lies_hides_no_other() -> None:
    """Brokers do not look at offsets within a batch that is not compressed, and the client library passed
    over what stood behind one that claims a later place.
    """
    raw = batch([record(0, b"k", b"1"), record(2, b"k", b"2"), record(2, b"k", b"3")])
    found = shown(reading(raw))
    assert [each[0] for each in found] == [0, 1, 2]
    assert found[1][1] == "record"
    assert found[2][3] == b"3"


def test_what_was_read_before_is_not_read_again() -> None:
    raw = batch([record(0, b"k", b"1"), record(1, b"k", b"2", [(b"\xff", b"")]), record(2, b"k", b"3")])
    assert (offsets(raw, 1), offsets(raw, 2)) == ([1, 2], [2])


def test_many_headers_are_one_damaged_record_however_they_come() -> None:
    many = record(0, b"k", b"v", [("", b"")] * (MAX_HEADERS + 1))
    for codec in CODECS:
        (found,) = reading(batch([many], codec=codec))
        assert isinstance(found, Damaged)
    (sound,) = reading(batch([record(0, b"k", b"v", [("", b"")] * MAX_HEADERS)]))
    assert len(sound.headers) == MAX_HEADERS


def test_large_batches_are_read_with_care_to_the_same_end() -> None:
    large = [record(i, b"k", bytes(100_000)) for i in range(15)]
    read = list(reading(batch(large, codec="zstd"), isolation=Isolation(1 << 24)))
    assert {type(each) for each in read} == {Plain}, "one by one, not all of them at once"
    found = shown(read)
    assert [each[0] for each in found] == list(range(15))
    assert {each[3] for each in found} == {bytes(100_000)}


def test_a_wrong_checksum_is_believed_the_second_time() -> None:
    data, isolation = spoiled(one()) + one(b"w", base=1), Isolation(LIMIT)
    first = reading(data, isolation=isolation)
    assert (list(first), first.next_fetch_offset) == ([], 0)
    again = reading(data, isolation=isolation)
    assert [each[:2] for each in shown(again)] == [(0, "record batch"), (1, 10**12)]


def test_what_the_network_has_damaged_is_read_when_sent_again() -> None:
    isolation = Isolation(LIMIT)
    assert values(spoiled(one()), isolation=isolation) == []
    assert values(one(), isolation=isolation) == [b"v"]


def test_damage_after_other_damage_is_asked_about_as_well() -> None:
    first, second = one(), one(b"w", base=1)
    isolation = Isolation(LIMIT)
    assert values(spoiled(first) + second, isolation=isolation) == []
    assert values(first + spoiled(second), isolation=isolation) == [b"v"]
    assert values(second, start=1, isolation=isolation) == [b"w"]


def test_a_compacted_batch_at_the_end_is_passed() -> None:
    thin = reading(batch([record(3, b"k", b"v")], last_delta=9))
    assert [each.offset for each in thin] == [3]
    assert thin.next_fetch_offset == 10
    empty = reading(batch([], last_delta=9))
    assert (list(empty), empty.next_fetch_offset) == ([], 10)


def test_a_batch_without_a_credible_end_is_not_passed() -> None:
    lying = spoiled(batch([record(0, b"k", b"v")], last_delta=1 << 30))
    isolation = Isolation(LIMIT)
    assert list(reading(lying, isolation=isolation)) == []
    with pytest.raises(CorruptRecordException, match=r"orders\[3\].*at offset 0"):
        list(reading(lying, isolation=isolation))


def test_damage_in_an_aborted_transaction_is_nobodys() -> None:
    bad = batch([record(0, b"k", b"x", [(b"\xff", b"")])], producer_id=7, attributes=0x10)
    data = (
        bad
        + marker(ABORTED, base=1, producer=7)
        + transactional([b"good"], base=2, producer=7)
        + marker(DONE, base=3, producer=7)
    )
    records = reading(data, aborted=[(7, 0)])
    assert [each[3] for each in shown(records)] == [b"good"]
    assert records.next_fetch_offset == 4
    isolation = Isolation(LIMIT)
    for _ in range(2):
        found = values(spoiled(bad) + data[len(bad) :], isolation=isolation, aborted=[(7, 0)])
    assert found == [b"good"]


def test_what_is_outside_of_an_aborted_transaction_is_seen() -> None:
    data = (
        transactional([b"aborted"], base=0, producer=7)
        + batch([record(0, b"k", b"good")], base=1, producer_id=7)
        + marker(ABORTED, base=2, producer=7)
    )
    assert values(data, aborted=[(7, 0)]) == [b"good"]


def test_after_a_damaged_marker_the_producers_next_transaction_is_seen() -> None:
    data = (
        transactional([b"aborted"], base=0, producer=7)
        + spoiled(marker(ABORTED, base=1, producer=7))
        + transactional([b"good"], base=2, producer=7)
    )
    isolation = Isolation(LIMIT)
    list(reading(data, isolation=isolation, aborted=[(7, 0)]))
    found = shown(reading(data, 1, isolation=isolation, aborted=[(7, 0)]))
    assert [(each[0], each[3]) for each in found if each[0] == 2] == [(2, b"good")]


def test_consumers_that_are_not_ours_fail_as_before() -> None:
    bad = batch([record(0, b"k", b"x", [(b"\xff", b"")])])
    with pytest.raises(UnicodeDecodeError):
        list(reading(bad, isolation=True))
