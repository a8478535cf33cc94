"""Codecs, and fields that come, go and get another name."""

from __future__ import annotations

import inspect
import json
import sys
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import NewerSchema, Undecodable, Unencodable, UnknownSchema
from streams.model.avro_types import NoAvro, derived_schema
from streams.model.codecs import (
    AvroCodec,
    JsonCodec,
    Schemas,
    avro,
    decode_row,
    describe,
    encode_row,
    fingerprint_of,
    json_without_schema,
)
from streams.model.message import Row
from streams.model.schema_versions import nothing_frozen


class Line(msgspec.Struct, frozen=True):
    sku: str
    units: int = 1
    note: str | None = None


FIELDS = [
    {"name": "sku", "type": "string"},
    {"name": "units", "type": "int", "default": 1},
    {"name": "note", "type": ["null", "string"], "default": None},
]


def schema(*names: str) -> str:
    fields = [field for field in FIELDS if field["name"] in names]
    return json.dumps({"type": "record", "name": "Line", "fields": fields})


OURS = schema("sku", "units", "note")
LINES = st.builds(Line, st.text(), st.integers(-(2**31), 2**31 - 1), st.none() | st.text())


@given(LINES)
def test_a_value_comes_back_from_avro_and_from_json(line: Line) -> None:
    for codec in (AvroCodec(Line, OURS, Schemas()), JsonCodec(Line)):
        assert codec.decode(codec.encode(line), codec.fingerprint) == line
        assert codec.decode(codec.encode(line), None) == line
        assert decode_row(codec, encode_row(codec, line)) == line


@pytest.mark.parametrize(
    ("schema", "kind", "value"),
    [("double", int, 3), ("boolean", int, 1), ("long", bool, True), ("null", int | None, 5)],
)
def test_what_another_type_would_lose_is_refused(schema: str, kind: Any, value: Any) -> None:
    odd = msgspec.defstruct("Odd", [("a", kind)])
    record = {"type": "record", "name": "Odd", "fields": [{"name": "a", "type": schema}]}
    codec = AvroCodec(odd, json.dumps(record), Schemas())
    with suppress(Unencodable):
        assert codec.decode(codec.encode(odd(value)), None) == odd(value)


class Tagged(msgspec.Struct, frozen=True):
    tags: tuple[str, ...] | None
    weight: float = 0.5


@pytest.mark.parametrize("number", ["double", "float"])
@pytest.mark.parametrize("tags", [None, (), ("a", "b"), ("string", "a")])
def test_a_tuple_may_be_missing(number: str, tags: tuple[str, ...] | None) -> None:
    fields = [{"name": "tags", "type": ["null", {"type": "array", "items": "string"}]}]
    fields += [{"name": "weight", "type": number}]
    codec = AvroCodec(Tagged, json.dumps({"type": "record", "name": "Tagged", "fields": fields}), Schemas())
    assert codec.decode(codec.encode(Tagged(tags)), None) == Tagged(tags)


@given(st.binary(max_size=60), st.sampled_from([OURS, schema("sku")]))
def test_any_bytes_are_a_value_or_undecodable(data: bytes, writer: str) -> None:
    schemas = Schemas()
    fingerprint = schemas.add(writer).encode()
    for codec in (AvroCodec(Line, OURS, schemas), JsonCodec(Line)):
        with suppress(Undecodable):
            assert isinstance(codec.decode(data, fingerprint), Line)


@pytest.mark.parametrize(
    "data",
    [b'{"sku":"\xff"}', b'{"sku":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", b"null", b"[]"],
)
def test_bytes_that_json_libraries_stumble_over_are_undecodable(data: bytes) -> None:
    with pytest.raises(Undecodable):
        JsonCodec(Line).decode(data, None)


def test_bytes_behind_the_value_are_undecodable() -> None:
    codec = AvroCodec(Line, OURS, Schemas())
    with pytest.raises(Undecodable, match="1 bytes too many"):
        codec.decode(codec.encode(Line("a")) + b"\0", None)


def test_an_unknown_schema_is_known_once_it_is_announced() -> None:
    schemas = Schemas()
    codec = AvroCodec(Line, OURS, schemas)
    older = schema("sku")
    name = fingerprint_of(older)
    assert name not in schemas
    for _ in range(2):
        with pytest.raises(UnknownSchema, match=name) as raised:
            codec.decode(b"\x02a", name.encode())
        assert raised.value.fingerprint == name
    assert schemas.add(older) == name
    assert codec.decode(b"\x02a", name.encode()) == Line("a")


@pytest.mark.parametrize(
    "fingerprint", [b"0" * 15, b"0" * 17, b"zzzzzzzzzzzzzzzz", b"\xff" * 16, b"ABCDEFABCDEFABCD"]
)
def test_what_is_no_fingerprint_is_undecodable(fingerprint: bytes) -> None:
    with pytest.raises(Undecodable, match="is not a schema fingerprint"):
        AvroCodec(Line, OURS, Schemas()).decode(b"\x02a", fingerprint)


def test_json_by_its_fingerprint_is_read_beside_avro() -> None:
    codec, of_json = AvroCodec(Line, OURS, Schemas()), JsonCodec.fingerprint
    codec.require(of_json)
    assert codec.decode(JsonCodec(Line).encode(Line("a")), of_json) == Line("a")
    assert codec.decode(codec.encode(Line("b")), codec.fingerprint) == Line("b")
    for wrong in (b"", b"{", b"[]", codec.encode(Line("a"))):
        with pytest.raises(Undecodable, match="Line: "):
            codec.decode(wrong, of_json)


def test_json_that_avro_cannot_hold_is_undecodable() -> None:
    class Sum(msgspec.Struct):
        cents: int

    schema = '{"type": "record", "name": "Sum", "fields": [{"name": "cents", "type": "long"}]}'
    codec = AvroCodec(Sum, schema, Schemas())
    assert codec.decode(b'{"cents": 9223372036854775807}', JsonCodec.fingerprint) == Sum(2**63 - 1)
    with pytest.raises(Undecodable, match="it is JSON by its fingerprint"):
        codec.decode(b'{"cents": 9223372036854775808}', JsonCodec.fingerprint)


def test_a_schema_nested_too_deep_is_undecodable() -> None:
    """How deep is too deep depends on how deep the stack is already: where it was learnt, it was not."""
    schemas = Schemas()
    codec = AvroCodec(Line, OURS, schemas)
    nested: object = "string"
    for _ in range(400):
        nested = {"type": "array", "items": nested}
    fingerprint = schemas.add(json.dumps(nested)).encode()

    def deep_down(frames: int) -> None:
        if frames:
            deep_down(frames - 1)
        else:
            codec.require(fingerprint)

    with pytest.raises(Undecodable, match="cannot be used"):
        deep_down(sys.getrecursionlimit() - len(inspect.stack(0)) - 100)


def test_a_fingerprint_does_not_depend_on_docs_and_layout() -> None:
    documented = json.loads(OURS) | {"doc": "a line"}
    assert fingerprint_of(json.dumps(documented, indent=4)) == fingerprint_of(OURS)
    assert fingerprint_of(OURS) != fingerprint_of(schema("sku"))


def test_codecs_are_made_for_a_subject() -> None:
    schemas = Schemas()
    made = avro({"lines": OURS}.__getitem__, schemas)(Line, "lines")
    assert made.fingerprint.decode() in schemas
    assert schemas.get(made.fingerprint.decode()) == OURS
    plain = json_without_schema(Line, "lines")
    assert (plain.schema, plain.fingerprint) == ("", b"0" * 16)
    assert describe(Line("a")) == {"sku": "a", "units": 1, "note": None}


class Tree(msgspec.Struct, frozen=True):
    name: str
    below: tuple[Tree, ...] = ()
    note: str | None = None


class Before:
    class Order(Row, frozen=True):
        order: str
        total: int = 0


class Both:
    class Order(Row, frozen=True):
        order: str
        total: int = 0
        total_cents: int = 0


class After:
    class Order(Row, frozen=True):
        order: str
        total_cents: int = 0


class Required:
    class Order(Row, frozen=True):
        order: str
        country: str


class Renamed(Row, frozen=True):
    order: str
    total: int = 0


def read_as(kind: type[Row], row: Row) -> Row:
    """A row that a worker of one version has written, as a worker of another one reads it."""
    make = avro(nothing_frozen, Schemas())
    writer, reader = make(type(row), "orders"), make(kind, "orders")
    return reader.decode(writer.encode(row), writer.fingerprint)


def test_a_field_with_a_default_comes_and_goes() -> None:
    assert read_as(Both.Order, Before.Order("o", 5)) == Both.Order("o", 5, 0)
    assert read_as(Before.Order, Both.Order("o", 5, 500)) == Before.Order("o", 5)


def test_a_field_without_a_default_cannot_be_added() -> None:
    with pytest.raises(Undecodable, match="country"):
        read_as(Required.Order, Before.Order("o", 5))


def test_a_field_is_renamed_in_three_deploys() -> None:
    """Each deploy reads what its neighbours write; the one in the middle writes both names."""
    assert read_as(Both.Order, Before.Order("o", 5)).total == 5
    written = Both.Order("o", 5, 500)
    assert read_as(Before.Order, written) == Before.Order("o", 5)
    assert read_as(After.Order, written) == After.Order("o", 500)
    assert read_as(Both.Order, After.Order("o", 500)) == Both.Order("o", 0, 500)


def test_a_field_renamed_in_one_deploy_loses_its_value() -> None:
    assert read_as(After.Order, Before.Order("o", 5)) == After.Order("o", 0)


def test_a_class_that_is_renamed_cannot_read_what_there_is() -> None:
    with pytest.raises(Undecodable, match="Renamed"):
        read_as(Renamed, Before.Order("o", 5))


class Aliased(msgspec.Struct, frozen=True):
    bb: Annotated[str, msgspec.Meta(extra={"aliases": ["b"]})] = ""


def test_an_alias_reads_what_was_written_under_the_former_name() -> None:
    schemas = Schemas()
    old = json.dumps(
        {
            "type": "record",
            "name": "Aliased",
            "namespace": "steadfaust",
            "fields": [{"name": "b", "type": "string"}],
        }
    )
    codec = AvroCodec(Aliased, derived_schema(Aliased), schemas)
    assert codec.decode(b"\x02x", schemas.add(old).encode()) == Aliased("x")
    assert codec.decode(codec.encode(Aliased("y")), codec.fingerprint) == Aliased("y")


@pytest.mark.parametrize("names", ["b", [7], ["no name"]])
def test_an_alias_that_is_no_name_is_refused(names: Any) -> None:
    odd = msgspec.defstruct("Odd", [("a", Annotated[str, msgspec.Meta(extra={"aliases": names})])])
    with pytest.raises(NoAvro, match="former names"):
        derived_schema(odd)


@pytest.mark.parametrize(
    ("first", "error", "who"), [("ours", NewerSchema, "a newer"), ("theirs", Undecodable, "an earlier")]
)
def test_a_value_of_another_version_says_which_wrote_it(first: str, error: type[Exception], who: str) -> None:
    schemas, theirs = Schemas(), schema("units").replace('"int", "default": 1', '"string"')
    codec = AvroCodec(Line, OURS, schemas)
    schemas.add(OURS, at=1 if first == "ours" else 2)
    name = schemas.add(theirs, at=2 if first == "ours" else 1)
    with pytest.raises(
        error, match=rf"{who} version of the application wrote it, with schema {name}"
    ) as raised:
        codec.decode(b"\x02x", name.encode())
    for told in (
        "sku is gone",
        "note is gone",
        "units is string now, and was int",
        codec.fingerprint.decode(),
    ):
        assert told in str(raised.value)


def test_a_value_of_another_topics_class_is_no_newer_version() -> None:
    schemas = Schemas()
    codec = AvroCodec(Line, OURS, schemas, "lines")
    schemas.add(OURS, at=1)
    other = json.dumps({"type": "record", "name": "Receipt", "fields": [{"name": "at", "type": "string"}]})
    name = schemas.add(other, at=2)
    with pytest.raises(Undecodable):
        codec.decode(b"\x02x", name.encode())
    schemas.add_version("lines", name, other, 2)  # the class has another name since
    with pytest.raises(NewerSchema):
        codec.decode(b"\x02x", name.encode())
