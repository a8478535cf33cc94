"""Reading batches with care: what is sound is read as the client library reads it, what is not is told."""

import tracemalloc
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from streams.kafka.records.batches import BATCH, RECORD, REST, read_batch
from streams.kafka.records.decompression import CannotOpen, decompressed
from streams.kafka.records.heads import end_of, head_of, split
from streams.ports import TP, Damaged, Record
from streams.testing.batches import CODECS, batch, checked, framed, part, record, varint
from tests.hostile import BOMBS, DAMAGED, UNFRAMED, UNOPENED, three

pytestmark = pytest.mark.promise("unreadable-records", "against the client library's own reading")

TP_ = TP("orders", 3)
LIMIT = 1 << 20


def read(raw: bytes, limit: int = LIMIT) -> list[Record]:
    return list(read_batch(TP_, raw, limit))


def seen(records: list[Record]) -> list[Any]:
    return [each.form if isinstance(each, Damaged) else each.value for each in records]


optional = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=5), optional), max_size=3)
contents = st.lists(
    st.tuples(optional, optional, headers, st.integers(-(1 << 63), (1 << 63) - 1)), min_size=1, max_size=6
)


@given(contents, st.sampled_from(sorted(CODECS)), st.integers(0, 1 << 40))
def test_what_is_sound_is_read_as_by_the_client_library(contents: list[Any], codec: str, base: int) -> None:
    made = [record(i, k, v, h, later=later) for i, (k, v, h, later) in enumerate(contents)]
    raw = batch(made, codec=codec, base=base)
    theirs = DefaultRecordBatch(raw)
    assert theirs.validate_crc()
    expected = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in theirs]
    ours = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in read(raw)]
    assert ours == expected


def test_a_number_loses_its_bits_above_64() -> None:
    one = b"\x82" + b"\x80" * 8 + b"\x7e"
    raw = batch([framed(b"\0\0\0" + one + b"k" + part(b"v") + varint(0))])
    (theirs,) = DefaultRecordBatch(raw)
    (ours,) = read(raw)
    assert (ours.key, ours.value) == (theirs.key, theirs.value) == (b"k", b"v")


@given(contents, st.sampled_from(sorted(CODECS)), st.data())
def test_any_batch_is_read_in_order_within_its_offsets(
    contents: list[Any], codec: str, data: st.DataObject
) -> None:
    made = [record(i, k, v, h, later=later) for i, (k, v, h, later) in enumerate(contents)]
    raw = bytearray(batch(made, codec=codec, base=7))
    places = st.tuples(st.integers(61, len(raw) - 1), st.integers(0, 255))
    for place, byte in data.draw(st.lists(places, max_size=5)):
        raw[place] = byte
    offsets = [each.offset for each in read(checked(bytes(raw)))]
    assert offsets == sorted(set(offsets))
    assert all(7 <= offset < 7 + len(contents) for offset in offsets)
    assert offsets
    assert offsets[-1] == 6 + len(contents), "whoever has read it has passed all of it"


@given(st.binary(max_size=200), st.integers(-2, 5), st.sampled_from([0, 1, 2, 3, 4, 5, 7]))
def test_any_bytes_are_read_without_an_error(body: bytes, count: int, codec: int) -> None:
    raw = batch([], body=body, attributes=codec, records=count, last_delta=max(count - 1, 0))
    assert all(each.offset <= max(count - 1, 0) for each in read(raw))


@given(st.binary(max_size=200))
def test_any_answer_is_split_or_refused(data: bytes) -> None:
    try:
        batches = list(split(data))
    except ValueError:
        return
    for raw, _ in batches:
        head = head_of(raw)
        assert head is not None or [each.topic for each in read(raw)] == ["orders"]


@pytest.mark.parametrize("what", DAMAGED)
@pytest.mark.parametrize("codec", CODECS)
def test_the_neighbours_of_a_damaged_record_are_read(what: str, codec: str) -> None:
    found = read(batch(three(DAMAGED[what]), codec=codec, base=40))
    assert seen(found) == [b"first", RECORD, b"third"]
    assert [each.offset for each in found] == [40, 41, 42]
    damaged = found[1]
    assert isinstance(damaged, Damaged)
    assert (damaged.key, damaged.value, tuple(damaged.headers)) == (b"k", DAMAGED[what], ())
    assert damaged.why.startswith("the record at offset 41 of orders[3] cannot be read: ")


@pytest.mark.parametrize("what", UNFRAMED)
def test_what_cannot_be_told_apart_is_one_rest(what: str) -> None:
    records = three(UNFRAMED[what])
    found = read(batch(records, base=40))
    assert seen(found) == [b"first", REST]
    assert (found[1].offset, found[1].value) == (42, b"".join(records[1:]))


def test_more_records_than_said_are_one_rest() -> None:
    records = three(record(1, b"k", b"second"))
    found = read(batch(records, records=2, last_delta=1))
    assert seen(found) == [b"first", REST]
    assert (found[1].offset, found[1].value) == (1, b"".join(records[1:]))


@pytest.mark.parametrize("number", [0, -5])
def test_a_record_of_a_batch_without_any_is_a_rest(number: int) -> None:
    (found,) = read(batch([record(1, b"k", b"second")], records=number, last_delta=0))
    assert isinstance(found, Damaged)
    assert (found.form, found.offset) == (REST, 0)


def test_fewer_records_than_the_batch_says_are_told() -> None:
    found = read(batch(three(record(1, b"k", b"second")), records=9, last_delta=8))
    assert seen(found) == [b"first", b"second", b"third", REST]
    assert (found[3].offset, found[3].value) == (8, b"")
    assert "has 3" in getattr(found[3], "why", "")


def test_a_batch_that_compaction_has_thinned_out_is_sound() -> None:
    found = read(batch([record(3, b"k", b"v"), record(7, b"k", b"w")], last_delta=9, base=100))
    assert [(each.offset, each.value) for each in found] == [(103, b"v"), (107, b"w")]
    assert read(batch([], last_delta=9, attributes=1)) == []


@pytest.mark.parametrize("what", UNOPENED)
def test_an_unopened_batch_is_one_at_its_last_offset(what: str) -> None:
    codec, body = UNOPENED[what]
    raw = batch([b""] * 5, body=body, attributes=codec, base=40)
    (found,) = read(raw)
    assert isinstance(found, Damaged)
    assert (found.form, found.offset, found.key, found.value) == (BATCH, 44, None, raw)
    assert found.why.startswith("the record batch of offsets 40 to 44 of orders[3] cannot be read: ")


@pytest.mark.parametrize("codec", BOMBS)
def test_a_bomb_is_not_opened_beyond_the_limit(codec: str) -> None:
    raw = BOMBS[codec]()
    tracemalloc.start()
    try:
        (found,) = read(raw, limit=LIMIT)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(found, Damaged)
    assert f"more than {LIMIT} bytes" in found.why
    assert most < 8 * LIMIT + len(raw)


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_up_to_the_limit_everything_is_opened(codec: str) -> None:
    number, compress = CODECS[codec]
    data = bytes(300_000)
    assert decompressed(number, bytes(compress(data)), 300_000) == data
    with pytest.raises(CannotOpen, match="more than 299999 bytes"):
        decompressed(number, bytes(compress(data)), 299_999)


def test_gzip_of_very_many_members_is_not_opened() -> None:
    member = bytes(CODECS["gzip"][1](b"x"))
    assert decompressed(1, member * 3, LIMIT) == b"xxx"
    with pytest.raises(CannotOpen, match="members"):
        decompressed(1, member * 50_000, LIMIT)


def legacy(magic: int, attributes: int, key: bytes | None, value: bytes | None) -> bytes:
    def sized(data: bytes | None) -> bytes:
        return b"\xff" * 4 if data is None else len(data).to_bytes(4, "big") + data

    stamp = (5).to_bytes(8, "big") if magic else b""
    body = bytes([magic, attributes]) + stamp + sized(key) + sized(value)
    return (9).to_bytes(8, "big") + (4 + len(body)).to_bytes(4, "big") + b"\0\0\0\0" + body


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_are_read_and_have_no_headers(magic: int) -> None:
    (found,) = read(legacy(magic, 0, b"k", None))
    assert (found.offset, found.key, found.value, tuple(found.headers)) == (9, b"k", None, ())
    assert found.timestamp == (5 if magic else -1)
    (cut,) = read(legacy(magic, 0, b"k", b"value")[:-3])
    assert isinstance(cut, Damaged)
    (compressed,) = read(legacy(magic, 1, None, b"whatever"))
    assert (seen([compressed]), compressed.offset) == ([BATCH], 9)


@pytest.mark.parametrize(
    ("delta", "count", "after", "end"),
    [
        (4, 5, None, 45),
        (4, 5, 45, 45),
        (4, 2, 50, 45),  # compacted
        (4, 2, 43, 43),  # it would reach into the next one
        (-3, 5, 50, 50),
        (1 << 30, 5, None, None),  # nothing says whether that is so
        (-3, 5, None, None),
    ],
)
def test_end_of_batch_whose_head_may_lie(delta: int, count: int, after: int | None, end: int | None) -> None:
    head = head_of(batch([], base=40, last_delta=delta, records=count))
    assert end_of(head, after) == end
