"""What the codec of plain schemas writes and reads is what fastavro does, or is left to it."""

from __future__ import annotations

import json
from enum import Enum, StrEnum
from io import BytesIO
from typing import Annotated, Any, Literal

import fastavro
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams.errors import Unencodable
from streams.model.codecs import AvroCodec, Schemas
from streams.model.plain_avro import plain_avro


class In(msgspec.Struct, frozen=True, rename={"x": "y"}):
    x: Annotated[str, msgspec.Meta(min_length=1, max_length=60)]


class En(StrEnum):
    A = "A"
    B = "B"


class All(msgspec.Struct, frozen=True, kw_only=True):
    a: bool
    b: int
    c: Annotated[int, msgspec.Meta(ge=-(1 << 61), lt=(1 << 63) - 1)]
    d: float
    e: bytes
    f: tuple[In, ...]
    g: dict[str, In | None]
    h: En | None
    i: tuple[int, ...] | None
    j: Literal["C", "D"]


INNER = {"type": "record", "name": "In", "fields": [{"name": "y", "type": "string"}]}
INSIDE = st.builds(In, st.text(min_size=1, max_size=60))
FIELDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "a": ("boolean", st.booleans()),
    "b": ("int", st.integers(-(1 << 31), (1 << 31) - 1)),
    "c": ("long", st.integers(-(1 << 61), (1 << 61) - 1) | st.integers(-5000, 5000)),
    "d": ("double", st.floats(allow_nan=False) | st.integers(-(1 << 53), 1 << 53)),
    "e": ("bytes", st.binary(max_size=200)),
    "f": ({"type": "array", "items": INNER}, st.lists(INSIDE, max_size=3).map(tuple)),
    "g": ({"type": "map", "values": ["In", "null"]}, st.dictionaries(st.text(), INSIDE | st.none())),
    "h": (["null", {"type": "enum", "name": "En", "symbols": ["B", "A"]}], st.sampled_from([None, *En])),
    "i": (["null", {"type": "array", "items": "long"}], st.none() | st.lists(st.integers(-9, 9)).map(tuple)),
    "j": ({"type": "enum", "name": "Li", "symbols": ["D", "C"]}, st.sampled_from(["C", "D"])),
}
SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "All",
        "fields": [{"name": n, "type": kind} for n, (kind, _) in FIELDS.items()],
    }
)
VALUES = st.builds(All, **{name: values for name, (_, values) in FIELDS.items()})
ODD: list[Any] = [
    None, True, 7, 1 << 31, (1 << 53) + 1, -1 << 62, 1 << 63, 10**400, 1.5, "C", "\ud800", "x" * 61,
    b"x", (), ("long", 1), (1,), (None,), (In(""),), {"y": 1}, {"y": In("x")},
]  # fmt: skip
CODEC: Any = plain_avro(All, SCHEMA)


def by_fastavro(value: Any) -> bytes:
    out = BytesIO()
    plain = msgspec.to_builtins(value, builtin_types=(bytes,))
    fastavro.schemaless_writer(out, SCHEMA, plain, disable_tuple_notation=True)
    return out.getvalue()


def test_each_of_these_schemas_is_plain() -> None:
    assert CODEC.sure


@given(VALUES)
def test_a_value_has_the_bytes_that_fastavro_writes(value: All) -> None:
    data = by_fastavro(value)
    assert CODEC.write(value) == data
    assert CODEC.read(data) == value


@given(VALUES, st.sampled_from([*FIELDS]), st.sampled_from(ODD))
def test_an_odd_value_is_left_to_fastavro(value: All, name: str, odd: Any) -> None:
    given_value = msgspec.structs.replace(value, **{name: odd})
    if (data := CODEC.write(given_value)) is not None:
        assert data == by_fastavro(given_value)
        back = CODEC.read(data)
        assert back == given_value
        assert name == "d" or type(getattr(back, name)) is type(odd)


@given(VALUES, st.data())
@example(None, None)
def test_damaged_bytes_are_read_as_by_fastavro(value: Any, damage: Any) -> None:
    if damage is None:
        assert CODEC.read(b"\1" + b"\x80" * 1_000_000) is None
        return
    data = by_fastavro(value)
    at = damage.draw(st.integers(0, len(data)))
    data = data[:at] + damage.draw(st.binary(max_size=4)) + data[at + damage.draw(st.integers(0, 3)) :]
    if (found := CODEC.read(data)) is not None:
        source = BytesIO(data)
        fields = fastavro.schemaless_reader(source, SCHEMA, None)
        assert repr(found) == repr(msgspec.convert(fields, All))
        assert source.tell() == len(data)


class Long(msgspec.Struct):
    a: int
    b: list[int]


LONG = {
    "type": "record",
    "name": "Long",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": {"type": "array", "items": "long"}}],
}
LONGS = AvroCodec(Long, json.dumps(LONG), Schemas())


@pytest.mark.parametrize("bits", range(64))
def test_numbers_of_any_length_are_written_and_read(bits: int) -> None:
    for number in (1 << bits, (1 << bits) - 1, -1 << bits, (-1 << bits) + 1):
        if number >> 63 in (-1, 0):
            value = Long(number, [number, 0])
            out = BytesIO()
            fastavro.schemaless_writer(out, LONG, msgspec.to_builtins(value))
            assert LONGS.encode(value) == out.getvalue()
            assert LONGS.decode(out.getvalue(), None) == value


@pytest.mark.parametrize("number", [0, 1, 2, 127, 1 << 61, (1 << 63) - 1, (1 << 63) + 1, (1 << 64) - 1])
@pytest.mark.parametrize("length", range(1, 11))
def test_a_number_in_too_many_bytes_is_read(number: int, length: int) -> None:
    groups = [number >> shift & 0x7F for shift in range(0, 70, 7)]
    if any(groups[length:]):
        return
    data = bytes(group | 0x80 for group in groups[: length - 1]) + bytes([groups[length - 1]])
    assert LONGS.decode(data + b"\0", None) == Long((number >> 1) ^ -(number & 1), [])


@pytest.mark.parametrize("blocks", ["00020200", "0004020400", "000202020400", "0001020200", "0002028000"])
def test_an_array_in_any_blocks_is_read(blocks: str) -> None:
    data = bytes.fromhex(blocks)
    expected = fastavro.schemaless_reader(BytesIO(data), LONG, None)
    assert LONGS.decode(data, None) == msgspec.convert(expected, Long)


FULL = All(
    a=True, b=-1, c=1 << 60, d=0.1, e=b"x" * 40, f=(In("y"), In("\u20ac" * 40)), g={"k": In("z"), "n": None},
    h=En.B, i=(1, -70), j="D",
)  # fmt: skip


def test_bytes_that_are_cut_are_left_to_fastavro() -> None:
    data = by_fastavro(FULL)
    assert CODEC.read(data) == FULL
    for end in range(len(data)):
        assert CODEC.read(data[:end]) is None


@pytest.mark.parametrize("length", [-1, 4, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, 1 << 61])
@pytest.mark.parametrize("kind", ["string", "bytes", "array", "map", "enum"])
def test_a_length_beyond_the_data_is_left_to_fastavro(kind: str, length: int) -> None:
    other = {"array": {"items": "long"}, "map": {"values": "long"}, "enum": {"name": "E", "symbols": ["A"]}}
    types = {"string": str, "bytes": bytes, "array": list[int], "map": dict[str, int], "enum": Literal["A"]}
    record = {
        "type": "record",
        "name": "Odd",
        "fields": [{"name": "a", "type": {"type": kind, **other.get(kind, {})}}],
    }
    codec: Any = plain_avro(msgspec.defstruct("Odd", [("a", types[kind])]), fastavro.parse_schema(record))
    out = BytesIO()
    fastavro.schemaless_writer(out, "long", length)
    assert codec.read(out.getvalue() + b"\2\2\2") is None


class Texts(msgspec.Struct):
    a: str
    b: bytes


@pytest.mark.parametrize("size", [0, 31, 32, 63, 64, 255, 256, 1 << 16, (1 << 20) - 1, 1 << 20])
def test_texts_and_bytes_of_any_length_are_read(size: int) -> None:
    fields = [{"name": "a", "type": "string"}, {"name": "b", "type": "bytes"}]
    codec = AvroCodec(Texts, json.dumps({"type": "record", "name": "Texts", "fields": fields}), Schemas())
    for value in (Texts("x" * size, b"\xff" * size), Texts("\u20ac" * (size // 3), b"")):
        assert codec.decode(codec.encode(value), None) == value


def test_a_full_stack_is_an_error() -> None:
    data = by_fastavro(FULL)
    odd = [msgspec.structs.replace(FULL, **{name: 10**400}) for name in "bcd"]

    def deeper() -> None:
        assert CODEC.write(FULL) == data
        assert CODEC.read(data) == FULL
        assert not any(CODEC.write(each) for each in odd)
        deeper()

    with pytest.raises(RecursionError):
        deeper()


EMPTY = {"type": "record", "name": "Empty", "fields": []}


class Empty(msgspec.Struct):
    pass


class Own(msgspec.Struct):
    next: Own | None


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ("null", None),
        ("float", float),
        ({"type": "long", "logicalType": "timestamp-millis"}, int),
        ("string", Annotated[str | None, msgspec.Meta(min_length=1)]),
        ("double", int),
        ("string", bytes),
        ("string", str | None),
        (["null", "string"], str),
        (["null", "long", "string"], int | str | None),
        ({"type": "fixed", "name": "Fi", "size": 2}, bytes),
        ({"type": "array", "items": EMPTY}, list[Empty]),
        ({"type": "record", "name": "Own", "fields": [{"name": "next", "type": ["null", "Own"]}]}, Own),
        (INNER, All),
    ],
)
def test_other_schemas_and_classes_are_left_to_fastavro(schema: Any, kind: Any) -> None:
    record = {"type": "record", "name": "Odd", "fields": [{"name": "a", "type": schema}]}
    odd = msgspec.defstruct("Odd", [("a", kind)])
    assert plain_avro(odd, fastavro.parse_schema(record)) is None


class Misnamed(Enum):
    A = "B"
    B = "A"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Misnamed)

    __hash__ = None  # type: ignore[assignment] # what is equal has no hash of its own

    @property
    def value(self) -> str:
        return self.name


@pytest.mark.parametrize("member", [*Misnamed])
def test_an_enum_is_what_its_member_was_made_of(member: Misnamed) -> None:
    enum = {"type": "enum", "name": "Misnamed", "symbols": ["A", "B"]}
    record = {"type": "record", "name": "Odd", "fields": [{"name": "a", "type": enum}]}
    odd = msgspec.defstruct("Odd", [("a", Misnamed)])
    codec: Any = plain_avro(odd, fastavro.parse_schema(record))
    assert codec.read(codec.write(odd(member))).a is member


def test_a_type_named_like_another_is_not_taken_for_it() -> None:
    enum = {"type": "enum", "name": "string", "symbols": ["A", "B"]}
    fields = [{"name": "a", "type": enum}, {"name": "b", "type": "string"}]
    odd = msgspec.defstruct("Odd", [("a", Literal["A", "B"]), ("b", Literal["A", "B"])])
    record = {"type": "record", "name": "Odd", "fields": fields}
    assert plain_avro(odd, fastavro.parse_schema(record)) is None


class Checked(msgspec.Struct):
    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError(self.a)


@pytest.mark.parametrize(
    ("schema", "kind", "value"),
    [
        ("string", Annotated[str, msgspec.Meta(pattern="^a")], "b"),
        ("long", Annotated[int, msgspec.Meta(multiple_of=2)], 3),
        ("double", Annotated[float, msgspec.Meta(ge=0)], -1.0),
        ("bytes", Annotated[bytes, msgspec.Meta(min_length=1)], b""),
        ({"type": "array", "items": "long"}, Annotated[list[int], msgspec.Meta(max_length=1)], [1, 2]),
        (
            {"type": "record", "name": "Checked", "fields": [{"name": "a", "type": "long"}]},
            Checked,
            Checked(0),
        ),
    ],
)
def test_what_a_class_asks_for_besides_is_checked(schema: Any, kind: Any, value: Any) -> None:
    record = {"type": "record", "name": "Odd", "fields": [{"name": "a", "type": schema}]}
    odd = msgspec.defstruct("Odd", [("a", kind)])
    if isinstance(value, Checked):
        value.a = -1
    with pytest.raises(Unencodable):
        AvroCodec(odd, json.dumps(record), Schemas()).encode(odd(value))
