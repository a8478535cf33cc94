"""What the codec of plain schemas writes and reads is what fastavro does, or is left to it."""

from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams.model.avro_bytes import plain_avro

INNER = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "string"}]}
INSIDE = st.builds(lambda text: {"x": text}, st.text(max_size=70))
FIELDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "a": ("boolean", st.booleans()),
    "b": ("int", st.integers(-(1 << 31), (1 << 31) - 1)),
    "c": ("long", st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-5000, 5000)),
    "d": ("double", st.floats(allow_nan=False) | st.integers(-(1 << 53), 1 << 53)),
    "e": ("bytes", st.binary(max_size=200)),
    "f": ({"type": "array", "items": INNER}, st.lists(INSIDE, max_size=3)),
    "g": ({"type": "map", "values": ["In", "null"]}, st.dictionaries(st.text(), INSIDE | st.none())),
    "h": (["null", {"type": "enum", "name": "En", "symbols": ["A", "B"]}], st.sampled_from([None, "A", "B"])),
    "i": (["null", {"type": "array", "items": "long"}], st.none() | st.lists(st.integers(-9, 9), max_size=3)),
}
SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "All",
        "fields": [{"name": n, "type": kind} for n, (kind, _) in FIELDS.items()],
    }
)
VALUES = st.fixed_dictionaries({name: values for name, (_, values) in FIELDS.items()})
ODD: list[Any] = [
    None, True, 7, 1 << 31, (1 << 53) + 1, 1 << 63, 10**400, 1.5, "C", "\ud800",
    b"x", (), ("long", 1), [1], [None], {"y": 1},
]  # fmt: skip
CODEC: Any = plain_avro(SCHEMA)


def by_fastavro(value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, value)
    return out.getvalue()


@given(VALUES)
def test_a_value_has_the_bytes_that_fastavro_writes(value: Any) -> None:
    data = by_fastavro(value)
    assert CODEC.write(value) == data
    assert CODEC.read(data) == value


@given(VALUES, st.sampled_from([*FIELDS]), st.sampled_from(ODD))
def test_an_odd_value_is_left_to_fastavro(value: Any, name: str, odd: Any) -> None:
    if (data := CODEC.write({**value, name: odd})) is not None:
        assert data == by_fastavro({**value, name: odd})
        assert type(CODEC.read(data)[name]) in ((float,) if name == "d" else (type(odd), list))


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
        assert repr(found) == repr(fastavro.schemaless_reader(source, SCHEMA, None))
        assert source.tell() == len(data)


EMPTY = {"type": "record", "name": "Empty", "fields": []}


@pytest.mark.parametrize(
    "kind",
    [
        "null",
        "float",
        ["null", "long", "string"],
        {"type": "fixed", "name": "Fi", "size": 2},
        {"type": "array", "items": EMPTY},
        {"type": "record", "name": "Own", "fields": [{"name": "next", "type": ["null", "Own"]}]},
    ],
)
def test_other_schemas_are_left_to_fastavro(kind: Any) -> None:
    schema = {"type": "record", "name": "Odd", "fields": [{"name": "a", "type": kind}]}
    assert plain_avro(fastavro.parse_schema(schema)) is None
