"""Numbers that are longer than their Avro type are no values, whatever fastavro makes of them."""

from __future__ import annotations

import json
from contextlib import suppress
from io import BytesIO
from typing import Any

import avro.errors
import avro.io
import avro.schema
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams.errors import PermanentError, Undecodable, Unencodable
from streams.model.codecs import AvroCodec, Schemas

pytestmark = pytest.mark.promise("number-range", "also against the decoder of the Avro project")

LONG = 1 << 63
INT = 1 << 31


class Price(msgspec.Struct, frozen=True):
    cents: int = 0


def record(*fields: tuple[str, Any]) -> str:
    listed = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Price", "fields": listed})


def varint(number: int) -> bytes:
    left = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def codec(kind: str) -> AvroCodec[Price]:
    return AvroCodec(Price, record(("cents", kind)), Schemas())


@pytest.mark.parametrize("cents", [LONG, -LONG - 1, 1 << 64, 1 << 70, -(1 << 70), 1 << 700])
def test_a_price_of_more_than_64_bits_is_undecodable(cents: int) -> None:
    with pytest.raises(Undecodable, match="64 bits"):
        codec("long").decode(varint(cents), None)


@pytest.mark.parametrize(
    ("kind", "cents"),
    [*(("long", cents) for cents in (LONG - 1, -LONG, INT, 0, -1)), ("int", INT - 1), ("int", -INT)],
)
def test_every_price_within_its_bits_is_itself(kind: str, cents: int) -> None:
    assert codec(kind).encode(Price(cents)) == varint(cents)
    assert codec(kind).decode(varint(cents), None) == Price(cents)


@pytest.mark.parametrize("padding", [1, 8])
def test_a_number_with_more_bytes_than_it_needs_is_itself(padding: int) -> None:
    data = varint(77)
    padded = data[:-1] + bytes([data[-1] | 0x80]) + b"\x80" * (padding - 1) + b"\0"
    assert codec("long").decode(padded, None) == Price(77)


@pytest.mark.parametrize("cents", [INT, -INT - 1, LONG - 1, LONG])
def test_more_than_32_bits_are_neither_read_nor_written(cents: int) -> None:
    with pytest.raises(Undecodable):
        codec("int").decode(varint(cents), None)
    with pytest.raises(Unencodable, match="Price does not fit its schema"):
        codec("int").encode(Price(cents))


@pytest.mark.parametrize("cents", [LONG, -LONG - 1, 1 << 70, 10**400, "\ud800", None, b"1"])
def test_what_does_not_fit_is_a_permanent_error(cents: Any) -> None:
    with pytest.raises(Unencodable) as raised:
        codec("long").encode(Price(cents))
    assert isinstance(raised.value, PermanentError)


def test_a_number_too_long_is_found_in_fields_left_out() -> None:
    schemas = Schemas()
    ours = AvroCodec(Price, record(("cents", "long")), schemas)
    older = schemas.add(record(("weight", "int"), ("cents", "long"))).encode()
    assert ours.decode(varint(INT - 1) + varint(5), older) == Price(5)
    with pytest.raises(Undecodable, match="32 bits"):
        ours.decode(varint(INT) + varint(5), older)


class Node(msgspec.Struct, frozen=True):
    cents: int
    next: Node | None = None


def test_a_recursive_type_is_walked_to_its_end() -> None:
    fields = [{"name": "cents", "type": "int"}, {"name": "next", "type": ["null", "a.Node"]}]
    schema = json.dumps({"type": "record", "name": "Node", "namespace": "a", "fields": fields})
    nodes = AvroCodec(Node, schema, Schemas())
    chain = varint(1) + varint(1) + varint(INT - 1) + varint(1)
    assert nodes.decode(chain + varint(-INT) + varint(0), None) == Node(1, Node(INT - 1, Node(-INT)))
    with pytest.raises(Undecodable, match="32 bits"):
        nodes.decode(chain + varint(INT) + varint(0), None)


# -- against the decoder of the Avro project, which reads numbers of any length ---------------------------

NUMBERS = [LONG - 1, -LONG, LONG, INT - 1, -INT, INT, 1 << 64, 1 << 70]
LONGS = st.integers(-4 * LONG, 4 * LONG) | st.sampled_from(NUMBERS) | st.integers(-9, 9)
TEXTS = st.text(max_size=9) | st.sampled_from(["王小明先生您好", "é" * 20])


#: One field of each type.
All: Any = msgspec.defstruct("All", [(name, Any, None) for name in "abcdefghi"], frozen=True)
INNER = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "long"}]}


def schema(number: str) -> str:
    """With `number` for an int or a long."""
    kinds: list[Any] = [
        number,
        "string",
        {"type": "array", "items": number},
        {"type": "map", "values": INNER},
        ["null", {"type": "enum", "name": "En", "symbols": ["A", "B"]}, "In", number],
        {"type": "fixed", "name": "Fi", "size": 9},
        {"type": "array", "items": "Fi"},
        "bytes",
        "long",
    ]
    fields = [{"name": name, "type": kind} for name, kind in zip("abcdefghi", kinds, strict=True)]
    return json.dumps({"type": "record", "name": "All", "fields": fields})


def sized(data: bytes) -> bytes:
    return varint(len(data)) + data


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """Bytes of such a record as a writer without bounds would make them."""

    def number() -> bytes:
        return varint(draw(LONGS))

    def text() -> bytes:
        return sized(draw(TEXTS).encode())

    def blocks(items: list[bytes]) -> bytes:
        if not items:
            return b"\0"
        data = b"".join(items)
        begin = varint(-len(items)) + varint(len(data)) if draw(st.booleans()) else varint(len(items))
        return begin + data + b"\0"

    def fixed() -> bytes:
        return draw(st.binary(min_size=9, max_size=9))

    few = range(draw(st.integers(0, 3)))
    branch = draw(st.integers(0, 3))
    union = {0: b"", 1: b"\2", 2: number(), 3: number()}[branch]
    return b"".join(
        [
            number(),
            text(),
            blocks([number() for _ in few]),
            blocks([text() + number() for _ in few]),
            varint(branch) + union,
            fixed(),
            blocks([fixed() for _ in few]),
            sized(draw(st.binary(max_size=20))),
            number(),
        ]
    )


def in_range(value: Any, schema: avro.schema.Schema) -> bool:
    if isinstance(schema, avro.schema.RecordSchema):
        return all(in_range(value[each.name], each.type) for each in schema.fields)
    if isinstance(schema, avro.schema.ArraySchema):
        return all(in_range(each, schema.items) for each in value)
    if isinstance(schema, avro.schema.MapSchema):
        return all(in_range(each, schema.values) for each in value.values())
    if isinstance(schema, avro.schema.UnionSchema):
        if isinstance(value, int):
            return in_range(value, schema.schemas[-1])
        return not isinstance(value, dict) or in_range(value, schema.schemas[2])
    if schema.type in ("int", "long"):
        bound = INT if schema.type == "int" else LONG
        return -bound <= value < bound
    return True


def by_avro(number: str, data: bytes) -> tuple[Any, bool]:
    """What the Avro project's decoder says, and whether all its numbers are in range."""
    parsed = avro.schema.parse(schema(number))
    source = BytesIO(data)
    try:
        fields = avro.io.DatumReader(parsed).read(avro.io.BinaryDecoder(source))
    except avro.errors.InvalidAvroBinaryEncoding:  # of 64 bits it knows itself
        return None, False
    return fields, in_range(fields, parsed) and source.tell() == len(data)


CODECS = {number: AvroCodec(All, schema(number), Schemas()) for number in ("int", "long")}


@given(st.sampled_from(["int", "long"]), written())
def test_a_record_is_read_as_avro_does_or_not(number: str, data: bytes) -> None:
    fields, fits = by_avro(number, data)
    if fits:
        assert msgspec.to_builtins(CODECS[number].decode(data, None), builtin_types=(bytes,)) == fields
    else:
        with pytest.raises(Undecodable):
            CODECS[number].decode(data, None)


@given(st.sampled_from(["int", "long"]), written(), st.data())
@example("long", b"\0", None)
def test_damaged_bytes_are_never_read_as_anything_else(number: str, data: bytes, damage: Any) -> None:
    if damage is not None and data:
        at = damage.draw(st.integers(0, len(data) - 1))
        data = data[:at] + damage.draw(st.binary(max_size=4)) + data[at + damage.draw(st.integers(0, 3)) :]
    with suppress(Undecodable):
        value = CODECS[number].decode(data, None)
        fields, fits = by_avro(number, data)
        assert fits
        assert msgspec.to_builtins(value, builtin_types=(bytes,)) == fields
