"""What is said of bytes that could not be decoded."""

import gzip
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import Undecodable
from streams.model.byte_kinds import look_of
from streams.model.codecs import AvroCodec, JsonCodec, Schemas

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Paid",
        "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "long"}],
    }
)


class Paid(msgspec.Struct, frozen=True):
    id: str
    n: int


PLAIN = json.dumps({"id": "o-17", "n": 3}).encode()
BODY = AvroCodec(Paid, SCHEMA, Schemas()).encode(Paid("order-17", 1))
KINDS = [
    (b"", "has no bytes"),
    (PLAIN, "looks like JSON"),
    (b'  \n{"id": 1', "looks like JSON"),
    (b"[1, 2]", "looks like JSON"),
    (b"null", "looks like JSON"),
    (
        b"\x00\x00\x00\x00\x07" + BODY,
        "starts with 0 and schema id 7: Confluent's frame, which is not read here",
    ),
    (b"<order id='1'/>", "starts with b'<order i'"),
    (gzip.compress(PLAIN, mtime=0), r"starts with b'\x1f\x8b\x08"),
    (b"\xf7\x00\x01", r"starts with b'\xf7\x00\x01'"),
]


@pytest.mark.parametrize(("data", "words"), KINDS, ids=[words for _, words in KINDS])
def test_undecodable_bytes_are_named_by_what_they_look_like(data: bytes, words: str) -> None:
    assert words in look_of(data)
    with pytest.raises(Undecodable) as raised:
        AvroCodec(Paid, SCHEMA, Schemas()).decode(data, None)
    assert words in str(raised.value)
    assert str(raised.value).startswith("Paid: it ")
    assert "Expected -62 bytes" not in str(raised.value).partition(" (")[0]


@pytest.mark.parametrize(("data", "words"), [each for each in KINDS if "JSON" not in each[1]])
def test_a_json_topic_says_the_same(data: bytes, words: str) -> None:
    with pytest.raises(Undecodable) as raised:
        JsonCodec(Paid).decode(data, None)
    assert words in str(raised.value)


def test_json_of_other_fields_is_told_by_its_fields() -> None:
    with pytest.raises(Undecodable, match=r"^Paid: Object missing required field `id`$"):
        JsonCodec(Paid).decode(b'{"n": 1}', None)


@given(st.binary(max_size=200))
def test_any_bytes_look_like_something(data: bytes) -> None:
    words = look_of(data)
    assert words.isprintable()
    assert len(words) < 200


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_all_json_looks_like_json(value: Any) -> None:
    if value not in ("", {}):
        assert look_of(json.dumps(value).encode()) == "looks like JSON"
