"""A schema derived from a class: what it says, that two Avro libraries read it, and what has none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum, IntEnum
from io import BytesIO
from typing import Annotated, Any, ClassVar, Literal, NewType

import msgspec
import pytest
from avro.io import BinaryDecoder, DatumReader
from avro.schema import parse
from hypothesis import given
from hypothesis import strategies as st

from streams.model.avro_types import NoAvro, derived_schema
from streams.model.codecs import AvroCodec, Schemas, avro
from streams.model.message import Message, Row
from streams.model.schema_versions import ClassAndSchemaDiffer, nothing_frozen

Colour = Literal["red", "green"]
OrderId = NewType("OrderId", str)


class Size(Enum):
    """How large it is."""

    SMALL = "small"
    LARGE = "large"


class Part(msgspec.Struct, frozen=True):
    """A part of it."""

    sku: str
    units: int = 1
    parts: tuple[Part, ...] = ()


class Thing(Message, frozen=True, kw_only=True):
    """Something with `everything`
    that a field can be.

    More about it, which is for readers of the code.

    Attributes:
        name: what it is called, in
            any language.
        a, b: one of two.
        colour: `red` unless it is not.
    """

    TOPIC: ClassVar[str] = "things.thing.made.v1"

    name: OrderId
    a: int
    b: bool
    weight: float
    data: bytes
    part: Part
    spare: Part | None
    parts: tuple[Part, ...] = ()
    names: list[str] = []  # noqa: RUF012 - msgspec copies it
    sizes: dict[str, float] = {}  # noqa: RUF012 - as above
    size: Size = Size.SMALL
    colour: Annotated[Colour, msgspec.Meta(title="Colour", description="Of its paint.")] = "red"
    mood: Literal["good", "bad"] | None = None
    nick: str | None = "it"
    raw: bytes = b"\xff"
    cents: Annotated[int, msgspec.Meta(ge=0, description="What it costs, in cents.")] = 0


def made_class(*fields: tuple[str, Any]) -> type[Any]:
    return msgspec.defstruct("Made", fields, bases=(Row,), frozen=True)


def fields_of(kind: type[Any]) -> Mapping[str, Any]:
    return {field.pop("name"): field for field in json.loads(derived_schema(kind))["fields"]}


def test_a_schema_says_what_the_class_says() -> None:
    schema = json.loads(derived_schema(Thing))
    assert (schema["type"], schema["namespace"], schema["name"]) == ("record", "steadfaust", "Thing")
    assert schema["doc"] == "Something with everything that a field can be."
    fields = fields_of(Thing)
    assert list(fields) == list(Thing.__struct_fields__), "the order is part of the bytes"
    part = {
        "type": "record",
        "name": "Part",
        "doc": "A part of it.",
        "fields": [
            {"name": "sku", "type": "string"},
            {"name": "units", "type": "long", "default": 1},
            {"name": "parts", "type": {"type": "array", "items": "Part"}, "default": []},
        ],
    }
    size = {"type": "enum", "name": "Size", "doc": "How large it is.", "symbols": ["small", "large"]}
    colour = {"type": "enum", "name": "Colour", "doc": "Of its paint.", "symbols": ["red", "green"]}
    mood = {"type": "enum", "name": "ThingMood", "symbols": ["good", "bad"]}
    assert fields == {
        "name": {"type": "string", "doc": "What it is called, in any language."},
        "a": {"type": "long", "doc": "One of two."},
        "b": {"type": "boolean", "doc": "One of two."},
        "weight": {"type": "double"},
        "data": {"type": "bytes"},
        "part": {"type": part},
        "spare": {"type": ["null", "Part"]},
        "parts": {"type": {"type": "array", "items": "Part"}, "default": []},
        "names": {"type": {"type": "array", "items": "string"}, "default": []},
        "sizes": {"type": {"type": "map", "values": "double"}, "default": {}},
        "size": {"type": size, "default": "small"},
        "colour": {"type": colour, "default": "red", "doc": "red unless it is not."},
        "mood": {"type": ["null", mood], "default": None},
        "nick": {"type": ["string", "null"], "default": "it"},
        "raw": {"type": "bytes", "default": "\xff"},
        "cents": {"type": "long", "default": 0, "doc": "What it costs, in cents."},
    }


def test_a_class_tells_of_the_fields_that_it_inherits() -> None:
    class Base(Row, frozen=True, kw_only=True):
        """Anything.

        Attributes:
            reason: why.
            when: the day.
        """

        reason: str
        when: str

    class Special(Base, frozen=True, kw_only=True):
        """Something.

        Attributes:
            reason: why this one.
        """

    told = {name: field["doc"] for name, field in fields_of(Special).items()}
    assert told == {"reason": "Why this one.", "when": "The day."}


def test_a_class_may_say_its_namespace() -> None:
    class Own(Row, frozen=True, kw_only=True):
        NAMESPACE: ClassVar[str] = "org.example"
        part: Part

    schema = json.loads(derived_schema(Own))
    assert schema["namespace"] == "org.example"
    assert "namespace" not in schema["fields"][0]["type"], "it is in that of the outermost"


def test_names_are_those_that_values_are_encoded_with() -> None:
    class Renamed(Row, frozen=True, kw_only=True, rename="camel"):
        order_id: str

    assert list(fields_of(Renamed)) == ["orderId"]
    value = Renamed(order_id="o-1")
    codec = AvroCodec(Renamed, derived_schema(Renamed), Schemas())
    assert codec.decode(codec.encode(value), None) == value


# -- values come back -------------------------------------------------------------------------------------

TEXT = st.text(max_size=5)
LONG = st.integers(-(2**63), 2**63 - 1)
#: Types of fields, each with its values.
SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, TEXT),
    (int, LONG),
    (bool, st.booleans()),
    (float, st.floats(allow_nan=False)),
    (bytes, st.binary(max_size=5)),
    (Size, st.sampled_from(Size)),
    (Part, st.builds(Part, TEXT, LONG, st.just((Part("inner"),)))),
]


def _wrapped(inner: tuple[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    kind, values = inner
    return st.sampled_from(
        [
            (tuple[kind, ...], st.lists(values, max_size=3).map(tuple)),
            (list[kind], st.lists(values, max_size=3)),
            (dict[str, kind], st.dictionaries(TEXT, values, max_size=3)),
            (kind | None, st.none() | values),
        ]
    )


KINDS = st.sampled_from(SCALARS) | st.sampled_from(SCALARS).flatmap(_wrapped)


@st.composite
def made_classes(draw: st.DrawFn) -> tuple[type[Any], Any]:
    kinds = draw(st.lists(KINDS, min_size=1, max_size=6))
    names = [f"f{number}" for number in range(len(kinds))]
    made = made_class(*((name, kind) for name, (kind, _) in zip(names, kinds, strict=True)))
    values = {name: draw(each) for name, (_, each) in zip(names, kinds, strict=True)}
    return made, made(**values)


@given(made_classes())
def test_values_of_any_class_come_back_from_both_avro_libraries(made: tuple[type[Any], Any]) -> None:
    kind, value = made
    codec = AvroCodec(kind, derived_schema(kind), Schemas())
    data = codec.encode(value)
    assert codec.decode(data, None) == value
    reader = DatumReader(parse(codec.schema))
    assert msgspec.convert(reader.read(BinaryDecoder(BytesIO(data))), kind) == value


# -- what has no Avro -------------------------------------------------------------------------------------


class Numbers(IntEnum):
    ONE = 1


class Tagged(msgspec.Struct, tag=True):
    a: int


class Listed(msgspec.Struct, array_like=True):
    a: int


class Holder(Row, frozen=True):
    tagged: Tagged


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (datetime, r"Made\.f is datetime, .*use a float of epoch seconds, or a str in RFC 3339"),
        (Decimal, r"Made\.f is Decimal, .*use an int of the smallest unit"),
        (set[str], r"Made\.f is set\[str\], .*use tuple\[T, \.\.\.\]: a set has no order"),
        (tuple[int, str], r"Made\.f is tuple\[int, str\], .*a Struct for several types"),
        (Any, r"Made\.f is .*Any, .*bytes of JSON"),
        (int | str, r"Made\.f is int \| str, .*several optional fields, or a message of its own"),
        (dict[int, str], r"Made\.f is dict\[int, str\], but the keys .* use str"),
        (
            Literal["out of stock"],
            r"Made\.f can be 'out of stock', which is not a valid Avro enum symbol: use",
        ),
        (Literal[1, 2], r"Made\.f can be 1, which is not a valid Avro"),
        (Numbers, r"Made\.f can be 1, which is not a valid Avro"),
        (Tagged, r"Made\.f is the Struct Tagged with tag=\.\.\., .*: omit it"),
        (Listed, r"Made\.f is the Struct Listed with array_like=\.\.\., .*: omit it"),
        (tuple[Part, ...] | dict[str, Part], r"Made\.f is .*only T \| None is a union here"),
        (tuple[datetime, ...], r"Made\.f\[\] is datetime"),
        (Holder, r"Made\.f\.tagged is the Struct Tagged"),
    ],
)
def test_a_type_without_avro_says_where_and_what_to_do(kind: Any, told: str) -> None:
    made = made_class(("f", kind))
    with pytest.raises(NoAvro, match=told):
        derived_schema(made)


def test_two_types_of_one_name_are_an_error() -> None:
    other = msgspec.defstruct("Part", [("other", str)])
    made = made_class(("one", Part), ("two", other))
    with pytest.raises(NoAvro, match=r"Made\.two makes a second type Part of another form: rename it"):
        derived_schema(made)


def test_what_is_no_struct_is_an_error() -> None:
    with pytest.raises(NoAvro, match="not a msgspec Struct: derive it from Message or Row"):
        derived_schema(dict)


def test_a_default_factory_is_no_default_of_the_schema() -> None:
    class Timed(Row, frozen=True, kw_only=True):
        at: float = msgspec.field(default_factory=lambda: 1.0)

    assert "default" not in fields_of(Timed)["at"]


# -- which schema is used ---------------------------------------------------------------------------------


def test_without_a_frozen_schema_the_derived_one_is_used() -> None:
    assert avro(nothing_frozen, Schemas())(Thing, Thing.TOPIC).schema == derived_schema(Thing)


def test_the_frozen_schema_must_have_the_fields_of_the_class() -> None:
    schema = json.loads(derived_schema(Part))
    schema["doc"] = "as it was frozen"
    text = json.dumps(schema)
    assert avro(lambda _: text, Schemas())(Part, "parts").schema == text
    del schema["fields"][1]
    with pytest.raises(
        ClassAndSchemaDiffer, match=r"parts: .*Part .* differ in units: `steadfaust schemas write`"
    ):
        avro(lambda _: json.dumps(schema), Schemas())(Part, "parts")


def test_a_nested_type_must_have_its_fields_too() -> None:
    schema = json.loads(derived_schema(Thing))
    next(field for field in schema["fields"] if field["name"] == "part")["type"]["fields"].pop()
    with pytest.raises(ClassAndSchemaDiffer, match=r"Part .* differ in parts"):
        avro(lambda _: json.dumps(schema), Schemas())(Thing, Thing.TOPIC)


def test_a_class_without_avro_can_have_its_own_schema() -> None:
    made = made_class(("f", int | str))
    text = '{"type": "record", "name": "Made", "fields": [{"name": "f", "type": ["long", "string"]}]}'
    codec = avro(lambda _: text, Schemas())(made, "made")
    assert [codec.decode(codec.encode(made(each)), None).f for each in (1, "one")] == [1, "one"]
