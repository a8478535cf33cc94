"""What is said of bytes that could not be decoded."""

import bz2
import gzip
import io
import json
import lzma
import pickle
from typing import Any

import fastavro
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


def container() -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(json.loads(SCHEMA)), [{"id": "a", "n": 1}])
    return out.getvalue()


def single_object() -> bytes:
    codec = AvroCodec(Paid, SCHEMA, Schemas())
    return b"\xc3\x01" + bytes.fromhex(codec.fingerprint.decode())[::-1] + codec.encode(Paid("a", 1))


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
    (b"\x00" + (9).to_bytes(8, "big") + BODY, "schema id 9 in 8 bytes: Apicurio's frame"),
    (b"\x03\x00" + bytes(range(16)) + BODY, "the frame of AWS Glue"),
    (gzip.compress(PLAIN, mtime=0), "compressed with gzip"),
    (b"\x28\xb5\x2f\xfd\x20\x0f", "compressed with zstd"),
    (b"\x04\x22\x4d\x18aa", "compressed with lz4"),
    (b"\x82SNAPPY\x00\x00", "compressed with snappy"),
    (bz2.compress(PLAIN), "compressed with bzip2"),
    (lzma.compress(PLAIN), "compressed with xz"),
    (container(), "an Avro container file"),
    (single_object(), "Avro's single-object form"),
    (b"\xac\xed\x00\x05sr", "Java's serialization"),
    (pickle.dumps({"id": "a"}), "a pickle of Python"),
    (msgspec.msgpack.encode({"id": "a", "n": 1.5}), "MessagePack"),
    (b"\xd9\xd9\xf7\xa1", "CBOR"),
    (b"<order id='1'/>", "looks like XML"),
    ("bezahlt: Müller".encode(), "looks like text in UTF-8"),
    (PLAIN.decode().encode("utf-16"), "text in UTF-16"),
    (b"\xef\xbb\xbf" + PLAIN, "byte order mark"),
    (b"eyJpZCI6ICJvLTE3In0=", "text in base64"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"\xf7\x00\x01", "it starts with f70001"),
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
